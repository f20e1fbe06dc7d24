import math

import numpy as np
import pytest

from lightning_lift.compare.records import RunRecord
from lightning_lift.compare.report.results import ArmRuns, Comparison, best_within, curve_band, lower_is_better
from tests.lightning_lift.compare.report.synthetic import ARMS, synthetic_record, synthetic_records, synthetic_settings


def small_record(label: str, seed: int, step: list[int], seconds: list[float], nll: list[float]) -> RunRecord:
    record = synthetic_record(label, seed)
    record.curves = {"step": step, "seconds": seconds, "val/nll": nll, "val/total_variation": [v / 10 for v in nll]}
    return record


def test_a_step_function_keeps_the_best_evaluation_so_far() -> None:
    clock = np.array([1.0, 2.0, 3.0, 4.0])
    monitored, curve = [3.0, 1.0, 2.0, 0.5], [30.0, 10.0, 20.0, 5.0]
    assert math.isnan(best_within(clock, monitored, curve, 0.9))
    assert best_within(clock, monitored, curve, 1.0) == 30.0
    assert best_within(clock, monitored, curve, 2.5) == 10.0
    assert best_within(clock, monitored, curve, 3.9) == 10.0  # the third was worse
    assert best_within(clock, monitored, curve, 9.0) == 5.0
    assert best_within(clock, [math.nan, 2.0, 1.0, math.nan], [1.0, 2.0, math.nan, 4.0], 9.0) == 2.0
    assert math.isnan(best_within(clock, monitored, curve, math.nan))


def test_equal_wall_clock_is_the_time_of_the_fastest_arm() -> None:
    records = [
        small_record("pgd", 0, [10, 20], [1.0, 2.0], [3.0, 2.0]),
        small_record("lift", 0, [10, 20], [1.5, 3.0], [2.5, 1.0]),
    ]
    comparison = Comparison.of({}, records)
    assert comparison.common_limit["seconds"] == 2.0
    assert comparison.values_within("seconds", "val/nll") == {"lift": {0: 2.5}, "pgd": {0: 2.0}}
    assert comparison.values_within("seconds", "val/total_variation") == {"lift": {0: 0.25}, "pgd": {0: 0.2}}
    assert comparison.values_within("steps", "val/nll") == {"lift": {0: 1.0}, "pgd": {0: 2.0}}


def test_a_timing_run_is_the_clock() -> None:
    records = [
        small_record("pgd", 0, [10, 20], [100.0, 200.0], [3.0, 2.0]),
        small_record("lift", 0, [10, 20], [1.0, 2.0], [2.5, 1.0]),
    ]
    for label, seconds in (("pgd", 0.1), ("lift", 0.15)):
        record = synthetic_record(label, 1000, "timing")
        record.timings = {"seconds_per_step": seconds}
        records.append(record)
    comparison = Comparison.of({}, records)
    assert comparison.common_limit["seconds"] == pytest.approx(2.0)  # 20 steps of 0.1 s
    assert comparison.values_within("seconds", "val/nll") == {"lift": {0: 2.5}, "pgd": {0: 2.0}}


def test_an_unknown_clock_is_said_to_be_unknown() -> None:
    record = small_record("lift", 0, [10], [1.0], [1.0])
    del record.curves["seconds"]
    comparison = Comparison.of({}, [small_record("pgd", 0, [10], [1.0], [1.0]), record])
    assert math.isnan(comparison.common_limit["seconds"])
    assert comparison.values_within("seconds", "val/nll") == {"lift": {}, "pgd": {}}


def test_an_arm_without_a_finished_run_does_not_set_the_limit() -> None:
    record = small_record("direct", 0, [1], [0.1], [9.0])
    record.outcome = "diverged"
    comparison = Comparison.of({}, [small_record("pgd", 0, [10], [1.0], [1.0]), record])
    assert comparison.common_limit["seconds"] == 1.0
    assert comparison.values_within("seconds", "val/nll")["direct"] == {}
    assert comparison.unfinished == {"direct": {0}, "pgd": set()}


def test_arms_stand_in_the_order_of_the_settings() -> None:
    records = synthetic_records(2)
    assert [arm.label for arm in Comparison.of(synthetic_settings(2), records).arms] == list(ARMS)
    assert Comparison.of({"arms": ["lift", "gone"]}, records).arms[0].label == "lift"
    assert [arm.label for arm in Comparison.of({}, records).arms] == sorted(ARMS)


def test_only_finished_final_runs_have_values() -> None:
    comparison = Comparison.of({}, synthetic_records(8))
    values = comparison.values("best", "test/nll")
    assert 3 not in values["direct"] and 7 not in values["lift"] and set(values["pgd"]) == set(range(8))
    assert comparison.values("best", "test/nothing") == {arm: {} for arm in sorted(ARMS)}
    assert comparison.headlines == ["test/total_variation", "test/nll"] and comparison.monitor == "val/nll"
    assert Comparison.of({"metrics": ["test/nll"]}, synthetic_records(2)).headlines == ["test/nll"]


def test_a_band_is_made_of_quantiles_at_each_evaluation() -> None:
    records = {seed: small_record("pgd", seed, [10, 20], [1.0 + seed, 2.0], [float(seed), 5.0]) for seed in range(5)}
    records[4].curves["val/nll"][1] = math.nan
    band = curve_band(ArmRuns("pgd", records), "val/nll", "steps")
    assert band["x"].tolist() == [10.0, 20.0]
    assert band["median"].tolist() == [2.0, 5.0] and band["low"].tolist() == [1.0, 5.0]
    assert curve_band(ArmRuns("pgd", records), "val/nll", "seconds")["x"].tolist() == [3.0, 2.0]
    assert len(curve_band(ArmRuns("pgd", records), "val/none", "steps")["x"]) == 0


def test_directions() -> None:
    assert lower_is_better("test/nll") and not lower_is_better("test/accuracy")


def test_the_monitored_metric_of_tuning_runs_alone() -> None:
    records = [record for record in synthetic_records(1) if record.purpose == "tune"]
    for record in records:
        record.metrics, record.curves = {"best": {"val/loss": 1.0}}, {"step": [1.0], "val/loss": [1.0]}
    assert Comparison.of({}, records).monitor == "val/loss"


def test_an_unknown_metric_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"--metrics nope: no finished run measured it.*test/nll"):
        _ = Comparison.of({"metrics": ["test/nll", "nope"]}, synthetic_records(2)).headlines
