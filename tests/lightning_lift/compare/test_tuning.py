"""Which learning rate an arm gets."""

import math

import pytest

from lightning_lift.compare.records import Outcome, RunRecord, RunSpec
from lightning_lift.compare.tuning import choose


def tuned(rate: float, seed: int, value: float, outcome: Outcome = "finished", metric: str = "val/nll") -> RunRecord:
    spec = RunSpec("lift", "tune", rate, seed, 10, {})
    metrics = {} if outcome == "failed" else {"best": {metric: value}, "last": {metric: value - 5.0}}
    return RunRecord.of(spec, outcome, metrics=metrics)


def grid(values: dict[float, list[float]]) -> list[RunRecord]:
    return [tuned(rate, 1000 + i, value) for rate, row in values.items() for i, value in enumerate(row)]


def test_the_lowest_mean_of_the_best_validation_metric_wins() -> None:
    choice = choose(grid({1e-2: [3.0, 3.0], 1e-3: [1.0, 2.0], 1e-4: [0.5, 4.0]}))
    assert choice.learning_rate == 1e-3 and choice.means == {1e-4: 2.25, 1e-3: 1.5, 1e-2: 3.0}
    assert choice.metric == "val/nll" and not choice.at_edge and choice.note is None


def test_a_tie_goes_to_the_smaller_rate() -> None:
    assert choose(grid({1e-2: [1.0], 1e-3: [1.0], 1e-4: [2.0]})).learning_rate == 1e-3


@pytest.mark.parametrize("bad", ["diverged", "failed"])
def test_a_rate_at_which_a_run_did_not_finish_is_passed_over(bad: Outcome) -> None:
    records = [*grid({1e-4: [2.0, 2.0], 1e-3: [1.9, 1.9], 1e-2: [0.1]}), tuned(1e-2, 1001, 0.1, bad)]
    choice = choose(records)
    assert choice.learning_rate == 1e-3
    assert choice.finished == {1e-4: 2, 1e-3: 2, 1e-2: 1} and choice.runs[1e-2] == 2


def test_where_no_rate_is_whole_the_runs_that_finished_decide_and_the_choice_says_so() -> None:
    records = [tuned(rate, 1001, 0.0, "diverged") for rate in (1e-4, 1e-3, 1e-2)] + grid(
        {1e-4: [2.0], 1e-3: [1.0], 1e-2: [3.0]}
    )
    choice = choose(records)
    assert choice.learning_rate == 1e-3 and "at no rate did every tuning run finish" in str(choice.note)


def test_where_nothing_finished_the_smallest_rate_is_taken_and_the_choice_says_so() -> None:
    choice = choose([tuned(rate, 1000, math.nan, "failed") for rate in (1e-3, 1e-2)])
    assert choice.learning_rate == 1e-3 and "no tuning run finished" in str(choice.note)
    assert choice.plain()["rates"] == [
        {"learning_rate": rate, "mean": None, "finished": 0, "runs": 1} for rate in (1e-3, 1e-2)
    ]


def test_a_metric_that_is_not_finite_counts_as_not_finished() -> None:
    assert choose(grid({1e-3: [2.0, 2.0], 1e-2: [1.0, math.inf]})).learning_rate == 1e-3


@pytest.mark.parametrize(("best", "edge"), [(1e-4, True), (1e-3, False), (1e-2, True)])
def test_a_choice_at_the_edge_of_the_grid_is_said(best: float, edge: bool) -> None:
    choice = choose(grid({rate: [1.0 if rate == best else 2.0] for rate in (1e-4, 1e-3, 1e-2)}))
    assert choice.at_edge == edge and ("at the edge of the grid" in str(choice.note)) == edge


def test_one_rate_has_no_edge() -> None:
    assert choose(grid({1e-3: [1.0]})).note is None


def test_without_a_likelihood_the_loss_decides() -> None:
    records = [tuned(rate, 1000, value, metric="val/loss") for rate, value in ((1e-3, 2.0), (1e-2, 1.0))]
    assert choose(records).learning_rate == 1e-2 and choose(records).metric == "val/loss"


def test_runs_of_several_arms_are_refused() -> None:
    other = RunRecord.of(RunSpec("pgd", "tune", 1e-3, 1000, 10, {}), "finished")
    with pytest.raises(ValueError, match=r"tuning runs of one arm, and these are of \['lift', 'pgd'\]"):
        choose([*grid({1e-3: [1.0]}), other])
