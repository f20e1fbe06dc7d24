"""POWER, GAS, MINIBOONE and BSDS300 from small generated files, against the published preparation done by hand."""

import io
import pickle
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_lift.datamodules import MAFTableDataModule, maf_archive
from lightning_lift.datamodules.downloads import md5_of
from lightning_lift.datamodules.maf_tables import TABLES


def data_of(table: str, path: Path, **arguments) -> MAFTableDataModule:
    settings = {"benchmark": False, "cache_folder": None, "batch_size": 16} | arguments
    return MAFTableDataModule(table=table, path=str(path), **settings)


def cut(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Last tenth for the test, last tenth of the others for validation."""
    num_test = int(0.1 * len(rows))
    num_val = int(0.1 * (len(rows) - num_test))
    return rows[: len(rows) - num_test - num_val], rows[len(rows) - num_test - num_val : -num_test], rows[-num_test:]


def assert_splits(data: MAFTableDataModule, expected: tuple[np.ndarray, ...]) -> None:
    for key, rows in zip(("train", "val", "test"), expected, strict=True):
        torch.testing.assert_close(data.split(key), torch.tensor(rows).float(), rtol=1e-5, atol=1e-5)


def save(path: Path, rows: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, rows)
    return path


def test_power_adds_the_published_noise(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    raw = generator.integers(0, 50, (200, 8)) / 10.0
    path = save(tmp_path / "data" / "power" / "data.npy", raw)

    legacy = np.random.RandomState(42)
    order = np.arange(200)
    legacy.shuffle(order)
    wanted = raw[order][:, [0, 2, 4, 5, 6, 7]]
    volts = legacy.uniform(0.0, 0.01, 200)
    kilowatts = legacy.uniform(0.0, 0.001, 200)
    meters = legacy.uniform(0.0, 1.0, (200, 3))
    wanted = wanted + np.column_stack([kilowatts, volts, meters, np.zeros(200)])
    train, val, test = cut(wanted)
    both = np.concatenate([train, val])
    expected = tuple((rows - both.mean(0)) / both.std(0) for rows in (train, val, test))

    for place in (tmp_path, tmp_path / "data", tmp_path / "data" / "power", path):
        data = data_of("power", place)
        assert_splits(data, expected)
    assert data.dim == 6 and data.name == "POWER (not the published splits)"
    np.testing.assert_array_equal(np.load(path), raw)


def gas_frame() -> pd.DataFrame:
    """Three columns to leave out, then ten sensors of which two nearly repeat others: eight are left."""
    generator = np.random.default_rng(1)
    sensors = generator.normal(size=(300, 10))
    sensors[:, 3] = sensors[:, 0] + 1e-3 * sensors[:, 3]  # the first of a pair goes: column 0
    sensors[:, 7] = -sensors[:, 6]  # correlated by -1: stays
    sensors[:, 9] = 2.0 * sensors[:, 5] + 1e-3 * sensors[:, 9]  # column 5 goes
    values = np.column_stack([generator.normal(size=(300, 3)), 5.0 + 3.0 * sensors])
    names = ["Time", "Meth", "Eth", *(f"s{i}" for i in range(10))]
    return pd.DataFrame(values, columns=pd.Index(names, dtype=object))


def gas_expected(frame: pd.DataFrame) -> tuple[np.ndarray, ...]:
    kept = frame[["s1", "s2", "s3", "s4", "s6", "s7", "s8", "s9"]]
    return cut(((kept - kept.mean()) / kept.std()).to_numpy())


@pytest.mark.parametrize("kind", ["pickle", "parquet"])
def test_gas_leaves_correlated_sensors_out(tmp_path: Path, kind: str) -> None:
    frame = gas_frame()
    (tmp_path / "gas").mkdir()
    path = tmp_path / "gas" / f"ethylene_CO.{kind}"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(frame, protocol=2))
    else:
        frame.to_parquet(path)
    data = data_of("gas", tmp_path)
    assert_splits(data, gas_expected(frame))


def test_gas_refuses_to_execute_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "ethylene_CO.pickle").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    with pytest.raises(ValueError, match=r"(?s)asks for os\.system.*nothing is executed.*to_parquet"):
        data_of("gas", tmp_path).setup()


def test_miniboone(tmp_path: Path) -> None:
    raw = np.random.default_rng(2).lognormal(size=(400, 43))
    save(tmp_path / "miniboone" / "data.npy", raw)
    train, val, test = cut(raw)
    both = np.concatenate([train, val])
    data = data_of("miniboone", tmp_path)
    assert_splits(data, tuple((rows - both.mean(0)) / both.std(0) for rows in (train, val, test)))
    assert data.log_scale == pytest.approx(float(np.log(both.std(0)).sum()), rel=1e-5)


class FakeHDF5:
    """What of h5py the reader uses."""

    def __init__(self, content: io.BytesIO, mode: str) -> None:
        try:
            self.parts = np.load(content)
        except ValueError as error:
            raise OSError("not an HDF5 file") from error

    def __enter__(self):
        return self.parts

    def __exit__(self, *arguments: object) -> None:
        pass


def test_bsds300_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    sizes = {"train": 60, "validation": 20, "test": 30}
    parts = {key: generator.normal(size=(count, 63)).astype(np.float32) for key, count in sizes.items()}
    target = tmp_path / "BSDS300" / "BSDS300.hdf5"
    target.parent.mkdir()
    with target.open("wb") as file:
        np.savez(file, **parts)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r"pip install h5py"):
        data_of("bsds300", tmp_path).setup()
    module = types.ModuleType("h5py")
    module.File = FakeHDF5
    monkeypatch.setitem(sys.modules, "h5py", module)
    data = data_of("bsds300", tmp_path)
    assert_splits(data, tuple(parts.values()))
    assert data.log_scale == 0.0
    target.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="damaged, cut off or another file"):
        data_of("bsds300", tmp_path).setup()


# The archive that they share, and what can be wrong.


def archive_of(target: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(target, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target


def npy(rows: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows)
    return buffer.getvalue()


def test_tables_of_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, frame = np.random.default_rng(4).normal(size=(200, 43)), gas_frame()
    files = {
        "data/power/data.npy": npy(np.random.default_rng(5).normal(size=(150, 8))),
        "data/miniboone/data.npy": npy(raw),
        "data/gas/ethylene_CO.pickle": pickle.dumps(frame, protocol=2),
    }
    archive = archive_of(tmp_path / "data.tar.gz", files)
    monkeypatch.setattr(maf_archive, "MD5", md5_of(archive))
    cache = str(tmp_path / "cache")
    assert_splits(data_of("gas", tmp_path, cache_folder=cache), gas_expected(frame))
    boone, power = (data_of(table, tmp_path, cache_folder=cache) for table in ("miniboone", "power"))
    for data in (boone, power):
        data.prepare_data()
        data.setup()
    torch.testing.assert_close(
        boone.split("test") * boone.scale + boone.location, torch.tensor(cut(raw)[2]), rtol=1e-5, atol=1e-5
    )
    assert len(power.split("train")) == 122
    assert len(list((tmp_path / "cache").iterdir())) == 9
    monkeypatch.setattr(MAFTableDataModule, "read", None)
    assert torch.equal(data_of("power", tmp_path, cache_folder=cache).split("val"), power.split("val"))


def test_published_counts_are_those_of_the_published_rule() -> None:
    """The totals of the published tables, cut by the rule, give the published splits."""
    for table, total in (("power", 2_049_280), ("gas", 1_052_065), ("miniboone", 36_488)):
        train, val, test = cut(np.empty((total, 0)))
        assert TABLES[table].counts == (len(train), len(val), len(test))


def test_the_benchmark_is_checked(tmp_path: Path) -> None:
    save(tmp_path / "miniboone" / "data.npy", np.random.default_rng(6).normal(size=(400, 43)))
    with pytest.raises(ValueError, match=r"has \(324, 36, 40\) .* published table \(29556, 3284, 3648\)"):
        data_of("miniboone", tmp_path, benchmark=True).setup()


def test_faults(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown table 'hepmas'; known are power, gas, miniboone, bsds300"):
        MAFTableDataModule(table="hepmas")
    with pytest.raises(FileNotFoundError, match=r"(?s)no files of POWER .*looked for data\.npy .*curl -L -C - "):
        data_of("power", tmp_path, benchmark=True).setup()
    path = save(tmp_path / "power" / "data.npy", np.zeros((50, 43)))
    with pytest.raises(ValueError, match=r"shape \(50, 43\), expected \(rows, 8\): another table's file"):
        data_of("power", tmp_path).setup()
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(ValueError, match="damaged, cut off"):
        data_of("power", tmp_path).setup()
    np.save(path, np.array([[{}]]), allow_pickle=True)
    with pytest.raises(ValueError, match="no array of numbers"):
        data_of("power", tmp_path).setup()
    save(path, np.ones((50, 8)))
    with pytest.raises(
        ValueError, match=r"constant column\(s\) at position \[5\]"
    ):  # the time, to which no noise is added
        data_of("power", tmp_path).setup()
    save(path, np.ones((5, 8)))
    with pytest.raises(ValueError, match="5 rows are too few"):
        data_of("power", tmp_path).setup()
