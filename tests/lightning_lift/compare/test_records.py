"""Records of runs: written whole, read back equal, never confused with those of other settings."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from lightning_lift.compare import RecordStore, RunRecord, RunSpec


def spec(**changes: Any) -> RunSpec:
    settings: dict[str, Any] = {"arm": "pgd", "purpose": "final", "learning_rate": 1e-3, "seed": 3, "steps": 40}
    return RunSpec(**{**settings, "config": {"model": {"a": [1, 2.5, None]}}, **changes})


def record(**changes: Any) -> RunRecord:
    results: dict[str, Any] = {
        "metrics": {"best": {"test/nll": 1.5}, "last": {"test/nll": math.inf}},
        "curves": {"step": [10.0, 20.0], "seconds": [0.1, 0.2], "val/nll": [1.0, math.nan]},
        "timings": {"fit_seconds": 1.0},
    }
    return RunRecord.of(spec(), "finished", **{**results, **changes})


def test_keys_name_a_run_and_are_file_names() -> None:
    assert spec().key == "final-pgd-lr0.001-steps40-seed003"
    assert spec(learning_rate=None, purpose="tune").key == "tune-pgd-lrconfig-steps40-seed003"
    key = spec(arm="direct:match_parameters=(lift:body_widths=[3, 2])").key
    assert not set(key) & set("/:*?[] ()") and spec(arm="a/b").key != spec(arm="a").key


def test_fingerprints_follow_what_determines_the_numbers() -> None:
    assert spec().fingerprint == spec(arm="other", purpose="tune").fingerprint
    for change in ({"seed": 4}, {"steps": 41}, {"config": {"model": {"a": [1, 2.5, 0]}}}):
        assert spec(**change).fingerprint != spec().fingerprint


def test_a_record_reads_back_equal(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    assert store.get(spec()) is None and store.all() == []
    store.write(record())
    again = store.get(spec())
    assert again is not None and again.reproducible() == record().reproducible()
    assert again.metrics["last"]["test/nll"] == math.inf and math.isnan(again.curves["val/nll"][1])
    assert again.timings == record().timings and again.curves["seconds"] == [0.1, 0.2]
    json.loads(store.path(spec().key).read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_only_times_are_left_out_of_what_must_agree() -> None:
    slower = record(timings={"fit_seconds": 9.0})
    slower.curves["seconds"] = [7.0, 8.0]
    assert slower.reproducible() == record().reproducible()
    for field in dataclasses.fields(RunRecord):
        if field.name not in ("timings", "curves"):
            changed = dataclasses.replace(record(), **{field.name: "changed"})
            assert changed.reproducible() != record().reproducible(), field.name
    other = record()
    other.curves["val/nll"] = [1.0, 2.0]
    assert other.reproducible() != record().reproducible()


def test_a_record_of_other_settings_is_refused(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(record())
    with pytest.raises(ValueError, match="other settings"):
        store.get(spec(config={"model": {"a": [1]}}))
    by_name = store.get(spec(config={}))
    assert by_name is not None and by_name.seed == 3


def test_where_a_class_of_this_package_is_imported_from_makes_no_other_run(tmp_path: Path) -> None:
    paths = ("datamodules.gumbel.GumbelDataModule", "lightning_lift.datamodules.GumbelDataModule", "GumbelDataModule")
    specs = [spec(config={"data": {"class_path": path}}) for path in paths]
    RecordStore(tmp_path).write(RunRecord.of(specs[0], "finished"))
    assert all(RecordStore(tmp_path).get(one) is not None for one in specs)
    for other in ("datamodules.LaplaceDataModule", "mine.GumbelDataModule"):
        with pytest.raises(ValueError, match="other settings"):
            RecordStore(tmp_path).get(spec(config={"data": {"class_path": other}}))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"{", b"", "Extra data"),
        (b"{", b"\xff\xfe{", "utf-8"),
        (b'"steps": 40', b'"steps": 4x0', "Expecting"),
        (b'"steps": 40', b'"steps": "NaN"', "its steps is nan"),
        (b'"steps": 40', b'"steps": 40.5', "its steps is 40.5"),
        (b'"seed": 3', b'"seed": true', "its seed is True"),
        (b'"outcome": "finished"', b'"outcome": "fine"', "its outcome is 'fine'"),
        (b'"best": {', b'"best": 3, "other": {', "its metrics is"),
        (b'"test/nll": 1.5', b'"test/nll": "1.5"', "its metrics is"),
        (b'"val/nll": [', b'"val/nll": ["x", ', "its curves is"),
        (b'"checkpoints": {}', b'"checkpoints": {"best": 1}', "its checkpoints is"),
        (b'"versions": {}', b'"versions": []', "its versions is"),
        (b'"seed": 3', b'"sead": 3', "sead"),
        (b'"seed": 3,', b"", "seed"),
    ],
)
def test_a_damaged_record_is_one_sentence_with_its_file_and_what_to_do(
    tmp_path: Path, old: bytes, new: bytes, said: str
) -> None:
    store = RecordStore(tmp_path)
    store.write(record())
    path = store.path(spec().key)
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    for read in (lambda: store.get(spec()), store.all):
        with pytest.raises(ValueError, match="delete it, and the run is done again") as raised:
            read()
        assert str(path) in str(raised.value) and said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", ["[1]", "3", '"x"', "null"])
def test_a_record_that_is_no_mapping_is_said(tmp_path: Path, content: str) -> None:
    path = RecordStore(tmp_path).path(spec().key)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ValueError, match=r"is no record of a run .*, not a mapping"):
        RecordStore(tmp_path).get(spec())


def test_the_temporary_file_of_a_killed_process_is_no_record(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.write(record())
    (tmp_path / "records" / f".{spec().key}.abc.json").write_text("{")
    assert [found.key for found in store.all()] == [spec().key]
