"""From settings to runs: which, how many, in which order, cut for how many workers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.compare.arms import parse_arms
from lightning_lift.compare.build import read_config
from lightning_lift.compare.plan import Settings, group
from lightning_lift.compare.record import RunRecord, RunSpec

CONFIG = read_config(Path(__file__).parents[3] / "configs" / "ebm_gumbel.yaml")


def settings(**changes: Any) -> Settings:
    base: dict[str, Any] = {"config": CONFIG, "arms": parse_arms("pgd,lift"), "seeds": (0, 1, 2), "steps": 100}
    return Settings(**(base | changes))


def timing(seconds: dict[str, float]) -> list[RunRecord]:
    specs = [RunSpec(arm, "timing", None, 1000, 50, {}) for arm in seconds]
    return [RunRecord.of(spec, "finished", timings={"seconds_per_step": seconds[spec.arm]}) for spec in specs]


def test_every_arm_gets_every_seed_and_the_runs_differ_in_nothing_else() -> None:
    plan = settings()
    runs = plan.final_specs(plan.steps_by_arm([]), {"pgd": 1e-3, "lift": None})
    assert [(r.arm, r.seed, r.learning_rate, r.steps) for r in runs] == [
        (arm, seed, rate, 100) for arm, rate in (("pgd", 1e-3), ("lift", None)) for seed in (0, 1, 2)
    ]
    assert len({run.key for run in runs}) == len({run.fingerprint for run in runs}) == 6
    assert runs[0].config["data"] == runs[3].config["data"] != runs[1].config["data"]
    assert runs[0].config["model"]["init_args"]["network"] == runs[3].config["model"]["init_args"]["network"]


def test_tuning_runs_have_seeds_of_their_own() -> None:
    plan = settings(learning_rates=(1e-3, 1e-2), tuning_seeds=2, tuning_steps=40)
    runs = plan.tuning_specs(plan.steps_by_arm([]))
    assert len(runs) == 2 * 2 * 2 and {r.steps for r in runs} == {40} and {r.seed for r in runs} == {1000, 1001}
    assert settings().tuning_specs({"pgd": 1, "lift": 1}) == []


def test_each_arm_is_timed_once() -> None:
    runs = settings(steps=5000).timing_specs()
    assert [(r.arm, r.purpose, r.steps) for r in runs] == [("pgd", "timing", 300), ("lift", "timing", 300)]
    assert {r.steps for r in settings(steps=600).timing_specs()} == {60}
    assert {r.steps for r in settings(steps=7).timing_specs()} == {7}


def test_a_budget_in_seconds_gives_each_arm_steps_by_its_own_time() -> None:
    measured = timing({"pgd": 0.01, "lift": 0.04})
    assert settings().steps_by_arm(measured) == {"pgd": 100, "lift": 100}
    assert settings(budget="seconds").steps_by_arm(measured) == {"pgd": 100, "lift": 25}
    assert settings(budget="seconds", seconds=8.0).steps_by_arm(measured) == {"pgd": 800, "lift": 200}


def test_a_budget_in_seconds_needs_a_time_of_every_arm() -> None:
    failed = RunRecord.of(RunSpec("lift", "timing", None, 1000, 50, {}), "failed", error="ValueError: no")
    with pytest.raises(ValueError, match=r"lift: its timing run gave no time per step \(ValueError: no\)"):
        settings(budget="seconds").steps_by_arm([*timing({"pgd": 0.01}), failed])


def test_settings_survive_json() -> None:
    arms = parse_arms(["pgd", "wide=direct:match_parameters=(lift:body_widths=[8,8])"])
    plan = settings(arms=arms, learning_rates=(1e-3,), checkpoint_every=10)
    assert Settings.of_plain(json.loads(json.dumps(plan.plain()))) == plan
    with pytest.raises(ValueError, match="of another version"):
        Settings.of_plain({"seeds": [0]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, "seeds: there are none: give a number of seeds"),
        ({"seeds": (1, 1)}, "seeds=1,1: they must be 0 or more, and each only once"),
        ({"seeds": (-1,)}, "seeds=-1: they must be 0 or more"),
        ({"steps": 0}, "steps=0: give 1 or more"),
        ({"look_every": 0}, "look_every=0: give 1 or more"),
        ({"learning_rates": (1e-3, 0.0)}, "learning_rates=0.001,0: they must be positive"),
        (
            {"learning_rates": (1e-3, 1e-3)},
            "learning_rates=0.001,0.001: they must be positive numbers, and each only once",
        ),
        ({"learning_rates": (float("nan"),)}, "learning_rates=nan"),
        ({"learning_rates": (1e-3,), "seeds": (1001,)}, "seeds=1001 are those of the tuning runs"),
        ({"budget": "hours"}, "budget='hours': give 'steps' or 'seconds'"),
        ({"seconds": 3.0}, "goes with the budget 'seconds' only"),
        ({"seconds": -3.0, "budget": "seconds"}, "seconds=-3.0: it must be positive"),
        ({"arms": ()}, "parameterizations: there is none to compare"),
        ({"arms": parse_arms("a b=pgd,a?b=direct")}, "arms 'a b' and 'a.b' would share their files"),
    ],
)
def test_bad_settings_are_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        settings(**changes)
    assert "\n" not in str(raised.value)


def specs(arm: str, count: int, steps: int = 10, purpose: Any = "final") -> list[RunSpec]:
    return [RunSpec(arm, purpose, 1e-3, seed, steps, {}) for seed in range(count)]


def test_the_longest_runs_come_first() -> None:
    runs = specs("fast", 2) + specs("slow", 2) + specs("fast", 1, steps=1000)
    tasks = group(runs, vectorize=False, slots=2, seconds_per_step={"fast": 0.1, "slow": 0.5})
    assert [(t.specs[0].arm, t.specs[0].steps) for t in tasks] == [
        ("fast", 1000), ("slow", 10), ("slow", 10), ("fast", 10), ("fast", 10),
    ]  # fmt: skip
    assert all(len(task.specs) == 1 and not task.vectorized for task in tasks)


def test_the_seeds_of_an_arm_are_one_task_where_there_are_enough_arms_for_all_workers() -> None:
    tasks = group(specs("a", 6) + specs("b", 6), vectorize=True, slots=2)
    assert [(t.specs[0].arm, len(t.specs), t.vectorized) for t in tasks] == [("a", 6, True), ("b", 6, True)]


def test_groups_are_cut_for_more_workers_and_no_seed_is_lost() -> None:
    tasks = group(specs("a", 7), vectorize=True, slots=3)
    assert sorted(len(t.specs) for t in tasks) == [2, 2, 3]
    assert sorted(spec.seed for task in tasks for spec in task.specs) == list(range(7))
    assert len(group(specs("a", 2), vectorize=True, slots=16)) == 2


def test_a_slow_arm_is_cut_so_that_no_worker_waits_for_it() -> None:
    tasks = group(
        specs("fast", 6) + specs("slow", 6), vectorize=True, slots=2, seconds_per_step={"fast": 0.1, "slow": 0.4}
    )
    assert [(t.specs[0].arm, len(t.specs)) for t in tasks] == [("slow", 3), ("slow", 3), ("fast", 6)]


def test_timing_runs_are_never_trained_at_once() -> None:
    tasks = group(specs("a", 3, purpose="timing"), vectorize=True, slots=1)
    assert len(tasks) == 3 and not any(task.vectorized for task in tasks)


def test_a_group_has_one_rate_and_one_number_of_steps() -> None:
    runs = specs("a", 2) + specs("a", 2, steps=20)
    runs += [dataclasses.replace(run, learning_rate=1e-2) for run in specs("a", 2)]
    assert sorted(len(task.specs) for task in group(runs, vectorize=True, slots=1)) == [2, 2, 2]
    assert group([], vectorize=True, slots=2) == []
