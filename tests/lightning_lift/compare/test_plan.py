"""From settings to runs: which, how many, in which order, cut for how many workers."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.compare.arms import parse_arms
from lightning_lift.compare.plan import Settings, cost_of
from lightning_lift.compare.records import RunRecord, RunSpec
from lightning_lift.settings import read_config

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
        ({"evaluate_every": 0}, "evaluate_every=0: give 1 or more"),
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


def test_a_run_costs_its_steps_times_its_arm_s_seconds() -> None:
    runs = [RunSpec(arm, "final", 1e-3, 0, steps, {}) for arm, steps in (("fast", 10), ("slow", 10), ("new", 20))]
    assert [cost_of({})(run) for run in runs] == [10.0, 10.0, 20.0]
    assert [cost_of({"fast": 0.1, "slow": 0.5})(run) for run in runs] == pytest.approx([1.0, 5.0, 6.0])


def test_settings_of_the_version_that_could_vectorize_are_read() -> None:
    plan = settings(evaluate_every=7)
    old = json.loads(json.dumps(plan.plain()))
    old["look_every"] = old.pop("evaluate_every")
    assert Settings.of_plain({**old, "vectorize": True}) == plan
