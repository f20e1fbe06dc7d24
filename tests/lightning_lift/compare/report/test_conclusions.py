import dataclasses

import numpy as np

from lightning_lift.compare.records import RunRecord
from lightning_lift.compare.report.conclusions import conclude, conclude_all, fairness, missing_runs
from lightning_lift.compare.report.results import Comparison
from lightning_lift.compare.statistics import PairedDifference, compare_arms
from tests.lightning_lift.compare.report.synthetic import synthetic_records, synthetic_settings


def pair(differences: list[float]) -> PairedDifference:
    values = {
        "lift": {s: 10.0 + d for s, d in enumerate(differences)},
        "pgd": dict.fromkeys(range(len(differences)), 10.0),
    }
    return compare_arms(values)[0]


def test_a_difference_is_claimed_with_its_direction_whichever_arm_stands_first() -> None:
    found = pair([-0.08 + 0.001 * seed for seed in range(12)])
    for one in (found, found.swapped()):
        text = conclude("test NLL", " nats", one)
        assert text.startswith("Over 12 paired seeds, lift's test NLL was lower than pgd's by 0.0745 nats on average")
        assert "95 % interval 0.07" in text and "Holm p = 4.9e-04" in text


def test_without_significance_nothing_is_claimed() -> None:
    text = conclude("test NLL", "", pair([0.1, -0.1, 0.2, -0.2, 0.3, -0.3, 0.4, -0.45]))
    assert "no difference in test NLL between lift and pgd was found at the 5 % level" in text
    assert "lower" not in text and "higher" not in text


def test_too_few_seeds_are_called_so() -> None:
    text = conclude("test NLL", "", pair([-1.0, -2.0, -3.0]))
    assert "whatever the numbers" in text and "smallest possible Holm p is 0.250" in text


def test_a_mean_that_contradicts_the_ranks_is_not_hidden() -> None:
    found = pair([-0.01 * (1 + seed) for seed in range(19)] + [50.0])
    assert found.significant and found.mean > 0.0
    text = conclude("test NLL", "", found)
    assert (
        "lift's test NLL tended to be lower than pgd's" in text and "the mean difference does not show it (2.4" in text
    )


def test_unfinished_seeds_and_equal_arms_are_said() -> None:
    found = dataclasses.replace(pair([-1.0 - 0.1 * seed for seed in range(8)]), unfinished=2)
    assert conclude("test NLL", "", found).startswith("Over 8 paired seeds (2 more did not finish), lift's")
    assert (
        conclude("test NLL", "", pair([0.0] * 9)) == "Over 9 paired seeds, lift and pgd have exactly the same test NLL."
    )
    assert conclude("test NLL", "", pair([])).startswith("No seed in which both")


def test_claims_come_first() -> None:
    generator = np.random.default_rng(0)
    values = {arm: dict(enumerate(level + generator.normal(size=20))) for arm, level in (("a", 0), ("b", 0), ("c", 5))}
    said = conclude_all("test NLL", "", compare_arms(values))
    assert "lower" in said[0] and "lower" in said[1] and "no difference" in said[2]


def records_of(arm: str, records: list[RunRecord]) -> list[RunRecord]:
    return [record for record in records if record.arm == arm and record.purpose == "final"]


def test_equal_hashes_are_stated() -> None:
    found = fairness(Comparison.of({}, synthetic_records(3)))
    assert not found.faults
    assert any("same network start in each of 3 seeds" in note for note in found.notes)
    assert any("same stream of data in each of 3 seeds" in note for note in found.notes)


def test_another_start_is_a_fault_of_the_arm_that_has_it() -> None:
    records = synthetic_records(3)
    records_of("lift", records)[1].start_hash = "other"
    records_of("pgd", records)[0].data_hash = "other"
    faults = fairness(Comparison.of({}, records)).faults
    assert len(faults) == 2
    assert faults[0].startswith("lift differs") and "network start in 1 of 3 seeds" in faults[0]
    assert faults[1].startswith("pgd differs") and "stream of data in 1 of 3 seeds" in faults[1]


def test_another_network_cannot_have_the_common_start() -> None:
    records = synthetic_records(3)
    for record in records_of("direct", records):
        record.config["model"]["init_args"]["network"]["init_args"]["widths"] = [900]
        record.start_hash = f"wide{record.seed}"
    found = fairness(Comparison.of({}, records))
    assert not found.faults
    assert any(note.startswith("direct: the network has other settings") for note in found.notes)


def test_absent_hashes_are_no_agreement() -> None:
    records = synthetic_records(2)
    for record in records:
        record.start_hash = ""
    notes = fairness(Comparison.of({}, records)).notes
    assert any("network start could not be checked in 2 of 2 seeds" in note for note in notes)
    assert not any("same network start" in note for note in notes)


def test_a_run_that_is_not_there_yet_is_no_unknown_hash() -> None:
    records = [record for record in synthetic_records(3) if not (record.arm == "lift" and record.seed == 1)]
    notes = fairness(Comparison.of({}, records)).notes
    assert not any("could not be checked" in note for note in notes)
    assert any("same network start in each of 3 seeds" in note for note in notes)


def test_missing_runs_are_counted_by_arm() -> None:
    records = [record for record in synthetic_records(4) if not (record.arm == "lift" and record.seed in (1, 2))]
    (text,) = missing_runs(Comparison.of(synthetic_settings(4), records))
    assert text.endswith("lift: 2 of 4.")
    assert "pgd: 6 of 10" in missing_runs(Comparison.of({"seeds": 10}, records))[0]
    assert missing_runs(Comparison.of(synthetic_settings(4), synthetic_records(4))) == []
