from lightning_lift.compare.fairness import fairness, missing_runs
from lightning_lift.compare.readings import Comparison
from lightning_lift.compare.record import RunRecord
from tests.lightning_lift.compare.synthetic import synthetic_records, synthetic_settings


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
