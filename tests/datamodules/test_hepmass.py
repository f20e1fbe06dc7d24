"""HEPMASS from small generated files in every published form, against an independent preparation."""

import csv
import gzip
import io
import statistics
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lift.datamodules import HEPMASSDataModule, hepmass, hepmass_files, maf_archive, published
from lightning_lift.datamodules.downloads import md5_of
from lightning_lift.testing import DataModuleContract

DISCRETE = {5, 9, 13, 17, 21}
REAL_ROWS = Path(__file__).parents[3] / "shared" / "data" / "hepmass_rows.csv"

Rows = list[list[float]]


def make_rows(count: int, seed: int, mass: bool = False) -> Rows:
    """Labelled rows: label, f0 to f26 (five of them with few values), possibly the mass."""
    generator = np.random.default_rng(seed)
    features = generator.normal(2.0, 3.0, (count, 27)).astype(np.float32).astype(float)
    for column in DISCRETE:
        features[:, column] = generator.choice([-1.1619147062301636, 0.8606486320495604], count)
    labels = generator.integers(0, 2, (count, 1)).astype(float)
    masses = generator.choice([499.999969, 750.0, 1000.0, 1250.000061], (count, 1))
    return np.concatenate([labels, features, *([masses] if mass else [])], axis=1).tolist()


def as_csv(rows: Rows, names: int) -> bytes:
    """The published layout: a header of so many names, whatever the rows have."""
    lines = [",".join(["# label", *(f"f{i}" for i in range(names - 1))])]
    lines += [",".join(f"{value:.18e}" for value in row) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def prepared(
    train: Rows, test: Rows
) -> tuple[list[list[float]], list[list[float]], list[float], list[float], set[int]]:
    """The published preparation in plain Python: standardised training rows, test rows, means, deviations, dropped."""
    signal = [row[1:27] for row in train if row[0] == 1.0]
    held_out = [row[1:27] for row in test if row[0] == 1.0]
    means = [statistics.fmean(column) for column in zip(*signal, strict=True)]
    deviations = [statistics.stdev(column) for column in zip(*signal, strict=True)]
    dropped = {j for j, column in enumerate(zip(*signal, strict=True)) if Counter(column)[min(column)] > 5}
    kept = [j for j in range(26) if j not in dropped]

    def units(rows: Rows) -> list[list[float]]:
        return [[(row[j] - means[j]) / deviations[j] for j in kept] for row in rows]

    return units(signal), units(held_out), [means[j] for j in kept], [deviations[j] for j in kept], dropped


TRAIN, TEST = make_rows(400, 1), make_rows(150, 2)
TRAIN_CSV, TEST_CSV = as_csv(TRAIN, 27), as_csv(TEST, 28)  # both faults of the published headers


def write_form(folder: Path, form: str) -> str:
    """Writes the pair in one of the published forms and gives the path to use."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"1000_train.csv": TRAIN_CSV, "1000_test.csv": TEST_CSV}
    if form in ("plain", "a file"):
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return str(folder / "1000_train.csv" if form == "a file" else folder)
    if form == "gz":
        for name, content in files.items():
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        return str(folder)
    if form == "unpacked":
        write_form(folder / "data" / "hepmass", "plain")
        return str(folder)
    if form == "zip":
        with zipfile.ZipFile(folder / "hepmass.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"{name}.gz", gzip.compress(content))
        return str(folder)
    order = ["1000_test.csv", "1000_train.csv"]
    with tarfile.open(folder / "data.tar.gz", "w:gz") as archive:
        for name, content in [("gas/x.pickle", b"no"), *((f"hepmass/{name}", files[name]) for name in order)]:
            entry = tarfile.TarInfo(f"data/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return str(folder / "data.tar.gz" if form == "the archive" else folder)


def data_of(path: str, tmp_path: Path, **arguments) -> HEPMASSDataModule:
    settings = {"benchmark": False, "cache_folder": str(tmp_path / "cache"), "batch_size": 32} | arguments
    return HEPMASSDataModule(source="files", path=path, **settings)


FORMS = ["plain", "a file", "gz", "unpacked", "zip", "tar", "the archive"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_published_preparation(tmp_path: Path, form: str) -> None:
    data = data_of(write_form(tmp_path / "in", form), tmp_path)
    train, test, means, deviations, dropped = prepared(TRAIN, TEST)
    assert dropped == DISCRETE and data.dim == 21
    assert data.name == "HEPMASS (not the published splits)"
    val_count = int(0.1 * len(train))
    expected = {"train": train[:-val_count], "val": train[-val_count:], "test": test}
    for key, rows in expected.items():
        torch.testing.assert_close(data.split(key), torch.tensor(rows, dtype=torch.float32), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(data.location, torch.tensor(means, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(data.scale, torch.tensor(deviations, dtype=torch.float64), rtol=1e-6, atol=0)
    assert data.support.isinf().all() and data.entropy is None and not data.has_log_prob
    with pytest.raises(NotImplementedError, match="not known"):
        data.log_prob(data.split("test"))


def test_only_the_first_rows_of_longer_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hepmass_files, "FIRST_ROWS", {"train": 300, "test": 100})
    monkeypatch.setattr(hepmass_files, "_BLOCK", 20_000)  # several blocks
    data = data_of(write_form(tmp_path, "gz"), tmp_path)
    train, test, *_ = prepared(TRAIN[:300], TEST[:100])
    found = torch.cat([data.split("train"), data.split("val")])
    torch.testing.assert_close(found, torch.tensor(train), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(data.split("test"), torch.tensor(test), rtol=1e-6, atol=1e-6)


def test_files_of_all_masses_give_their_rows_of_mass_1000(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"train": make_rows(1200, 3, mass=True), "test": make_rows(600, 4, mass=True)}
    for part, content in rows.items():
        (tmp_path / f"all_{part}.csv.gz").write_bytes(gzip.compress(as_csv(content, 29)))
    monkeypatch.setattr(hepmass_files, "FIRST_ROWS", {"train": 200, "test": 100})
    data = data_of(str(tmp_path), tmp_path)
    heavy = {part: [row for row in content if row[-1] == 1000.0] for part, content in rows.items()}
    assert len(heavy["train"]) > 200 and len(heavy["test"]) > 100
    train, test, *_ = prepared(heavy["train"][:200], heavy["test"][:100])
    found = torch.cat([data.split("train"), data.split("val")])
    torch.testing.assert_close(found, torch.tensor(train), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(data.split("test"), torch.tensor(test), rtol=1e-6, atol=1e-6)


def unlabelled_csv(rows: Rows) -> bytes:
    header = ",".join(f"f{i}" for i in range(27))
    return "\n".join([header, *(",".join(map(repr, row[1:28])) for row in rows)]).encode()


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_unlabelled_rows(tmp_path: Path, suffix: str) -> None:
    path, content = tmp_path / f"rows{suffix}", unlabelled_csv(TRAIN)
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    data = data_of(str(path), tmp_path, labelled=False, benchmark=True)
    every = [[1.0, *row[1:]] for row in TRAIN]
    train, test, *_ = prepared(every[:-40], every[-40:])
    assert [len(data.split(key)) for key in ("train", "val", "test")] == [324, 36, 40]
    torch.testing.assert_close(data.split("test"), torch.tensor(test), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(data.split("val"), torch.tensor(train[-36:]), rtol=1e-6, atol=1e-6)
    assert data.name == "HEPMASS (unlabelled rows)"


@pytest.mark.skipif(not REAL_ROWS.is_file(), reason="the 1,000 real rows are not on this machine")
def test_real_rows(tmp_path: Path) -> None:
    with REAL_ROWS.open("rb") as file:
        features = hepmass_files.read_features(file, "rows", labelled=False)
    assert features.shape == (1000, 26)
    assert set(range(26)) - set(hepmass_files.kept_columns(features)) == DISCRETE
    with REAL_ROWS.open() as file:
        second = [float(value) for value in list(csv.reader(file))[2]]
    np.testing.assert_array_equal(features[1], second[:26])
    data = data_of(str(REAL_ROWS), tmp_path, labelled=False)
    assert data.split("train").shape == (810, 21)


def test_the_cache_is_used_and_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_form(tmp_path / "in", "plain")
    first = data_of(path, tmp_path)
    first.prepare_data()
    assert len(list((tmp_path / "cache").glob("hepmass-*.npy"))) == 3
    with monkeypatch.context() as context:
        context.setattr(hepmass_files, "read_features", None)
        assert torch.equal(data_of(path, tmp_path).split("train"), first.split("train"))
    longer = make_rows(410, 5)
    (tmp_path / "in" / "1000_train.csv").write_bytes(as_csv(longer, 27))
    train, *_ = prepared(longer, TEST)
    assert len(data_of(path, tmp_path).split("train")) + len(data_of(path, tmp_path).split("val")) == len(train)


# What can be wrong with the files.


def test_missing_files_say_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        data_of(str(tmp_path / "no where"), tmp_path, benchmark=True).setup()
    message = str(caught.value)
    target = f"'{tmp_path}/no where/data.tar.gz'"
    assert f"curl -L -C - --create-dirs -o {target} https://zenodo.org/records/1161203/files/data.tar.gz" in message
    assert "download: true" in message and "9b9c9b0375315ad270eba4ce80c093ab" in message
    with pytest.raises(FileNotFoundError, match=r"no file 'rows\.csv'"):
        data_of("rows.csv", tmp_path, labelled=False).setup()


def test_the_benchmark_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_form(tmp_path / "in", "plain")
    with pytest.raises(ValueError, match=r"has \(\d+, \d+, \d+\) .*published table \(315123, 35013, 174987\)"):
        data_of(path, tmp_path, benchmark=True).setup()
    train, test, *_ = prepared(TRAIN, TEST)
    val = int(0.1 * len(train))
    monkeypatch.setattr(hepmass, "COUNTS", (len(train) - val, val, len(test)))
    data = data_of(path, tmp_path, benchmark=True)
    data.setup()
    assert data.name == "HEPMASS"
    archive = write_form(tmp_path / "packed", "the archive")
    with pytest.raises(ValueError, match=r"has MD5 .* the published archive 9b9c9b.*benchmark: false"):
        data_of(archive, tmp_path, benchmark=True).setup()
    monkeypatch.setattr(maf_archive, "MD5", md5_of(Path(archive)))
    data_of(archive, tmp_path, benchmark=True).setup()


@pytest.mark.parametrize("form", ["gz", "tar", "zip"])
def test_truncated_archives(tmp_path: Path, form: str) -> None:
    path = write_form(tmp_path / "in", form)
    victim = max((tmp_path / "in").iterdir(), key=lambda file: file.stat().st_size)
    content = victim.read_bytes()
    for fraction in (0.5, 0.95):
        victim.write_bytes(content[: int(fraction * len(content))])
        with pytest.raises(ValueError, match="cut off"):
            data_of(path, tmp_path).setup()
    assert not (tmp_path / "cache").exists()  # nothing of it is kept
    victim.write_bytes(content)
    data_of(path, tmp_path).setup()


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    for name, mode in (("data.tar.gz", "w:gz"), ("other.tar", "w")):
        with tarfile.open(tmp_path / name, mode) as archive:
            archive.addfile(tarfile.TarInfo("data/power/data.npy"), io.BytesIO())
        with pytest.raises(ValueError, match=r"holds no \['hepmass/1000_test.csv', 'hepmass/1000_train.csv'\]"):
            data_of(str(tmp_path / name), tmp_path).setup()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(ValueError, match=r"holds none of .*1000_test\.csv"):
        data_of(str(tmp_path / "x.zip"), tmp_path).setup()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TRAIN_CSV[:-300], "damaged or cut off: .*Expected 28 columns"),
        (TRAIN_CSV.replace(b"e+00", b"e+00,1", 1), "29 values|Expected 29 columns|Expected 28 columns|labels?"),
        (as_csv(TRAIN, 27).split(b"\n", 1)[1], "begins with numbers"),
        (b"# label,f0\n", "no rows under its first line"),
        (b"", "no rows under its first line"),
        (unlabelled_csv(TRAIN), r"27 values in its first row, expected 28 or 29 .*set labelled: false"),
        (as_csv([row[:20] for row in TRAIN], 20), r"20 values in its first row, expected 28 or 29"),
        (as_csv([[7.0, *row[1:]] for row in TRAIN], 28), r"label, 0 or 1, found 7\.0"),
        (TRAIN_CSV.replace(b"\n1.0", b"\nx.0", 1), "damaged or cut off: .*conversion error"),
        (as_csv([[1.0, *row[1:5], float("nan"), *row[6:]] for row in TRAIN], 28), "value 6 of row 1 is nan"),
        (as_csv(make_rows(9, 0), 27), r"expected of \['f5', 'f9', 'f13', 'f17', 'f21'\]: too few rows"),
    ],
)
def test_damaged_tables(tmp_path: Path, content: bytes, message: str) -> None:
    path = write_form(tmp_path / "in", "plain")
    (tmp_path / "in" / "1000_train.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data_of(path, tmp_path).setup()


def test_labelled_rows_are_not_taken_for_unlabelled_ones(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(TRAIN_CSV)
    with pytest.raises(ValueError, match=r"28 values .* expected 27 .*set labelled: true"):
        data_of(str(tmp_path / "rows.csv"), tmp_path, labelled=False).setup()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "real"}, "source must be 'files' or 'simulated', got 'real'"),
        ({"source": "files", "num_train": 10}, r"\['num_train'\] belong to source 'simulated'"),
        ({"num_test": 0}, "num_test must be an integer of at least 1"),
        ({"download": True}, "belong to source 'files'"),
        ({"labelled": False}, "belong to source 'files'"),
        ({"source": "files", "labelled": False}, r"reads one \.csv or \.csv\.gz file"),
        ({"source": "files", "labelled": False, "path": "a.csv", "download": True}, "without download"),
        ({"source": "files", "path": "a/data.tar.gz", "download": True}, "give one as path, got 'a/data.tar.gz'"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HEPMASSDataModule(**arguments)


# Downloading.


def test_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Path(write_form(tmp_path / "server", "the archive"))
    monkeypatch.setattr(maf_archive, "URL", archive.as_uri())
    data = data_of(str(tmp_path / "in"), tmp_path, download=True)
    with pytest.raises(ValueError, match="nothing kept"):
        data.prepare_data()
    assert list((tmp_path / "in").iterdir()) == []
    monkeypatch.setattr(maf_archive, "MD5", md5_of(archive))
    data.prepare_data()
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["data.tar.gz"]
    monkeypatch.setattr(maf_archive, "URL", "file:///nowhere")
    monkeypatch.setattr(published, "fetch_archive", None)
    again = data_of(str(tmp_path / "in"), tmp_path, download=True)  # there already
    again.prepare_data()
    assert torch.equal(again.split("test"), data.split("test"))


# The stand-in.


class TestSimulated(DataModuleContract):
    def make(self) -> HEPMASSDataModule:
        return HEPMASSDataModule(num_train=2000, num_val=500, num_test=2000, batch_size=64)


def test_simulated_is_named_so_and_has_a_known_density() -> None:
    data = HEPMASSDataModule(num_train=4000, num_val=300, num_test=2000, batch_size=64)
    data.prepare_data()
    data.setup()
    assert data.name == "HEPMASS (simulated)" and data.has_log_prob and data.entropy_error == 0.0
    assert [len(data.split(key)) for key in ("train", "val", "test")] == [4000, 300, 2000]
    log_prob = data.log_prob(data.split("test"))
    error = float(log_prob.std()) / 2000**0.5
    assert float(-log_prob.mean()) == pytest.approx(data.entropy, abs=4 * error)
    assert data.support.isinf().all() and (data.window[1] > data.window[0]).all()
    assert data.columns == hepmass_files.COLUMNS and data.hparams["num_train"] == 4000


def test_simulated_rows_are_a_function_of_the_seed() -> None:
    small = {"num_train": 300, "num_val": 200, "num_test": 200}
    one, two, three = (HEPMASSDataModule(data_seed=seed, **small) for seed in (0, 0, 1))
    state = torch.random.get_rng_state()
    assert torch.equal(one.split("train"), two.split("train"))
    assert not torch.equal(one.split("train"), three.split("train"))
    assert not torch.equal(one.split("train")[:200], one.split("val"))
    assert not torch.equal(one.split("test"), one.split("val"))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_simulated_defaults_to_the_size_of_the_published_table() -> None:
    assert HEPMASSDataModule()._num_rows == (315_123, 10_000, 20_000)


def test_hyperparameters_make_the_same_data_and_load_with_weights_only(tmp_path: Path) -> None:
    data = HEPMASSDataModule(num_train=300, num_val=50, num_test=50)
    torch.save(dict(data.hparams), tmp_path / "h.pt")
    again = HEPMASSDataModule(**torch.load(tmp_path / "h.pt", weights_only=True))
    assert torch.equal(again.split("val"), data.split("val"))


@pytest.mark.parametrize("row", [0, 300])
def test_a_row_with_an_empty_mass_is_named(tmp_path: Path, row: int) -> None:
    """It is neither of mass 1000 nor of another: leaving it out without a word would move the splits."""
    rows = make_rows(400, 3, mass=True)
    lines = as_csv(rows, 29).decode().splitlines()
    lines[1 + row] = lines[1 + row].rpartition(",")[0] + ","
    (tmp_path / "all_train.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "all_test.csv").write_bytes(as_csv(rows, 29))
    with pytest.raises(ValueError, match=rf"all_train.csv': the value 29 of row {row + 1} is nan"):
        data_of(str(tmp_path), tmp_path).setup()


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "1000_train.csv.gz").write_bytes(gzip.compress(b"1" * 20_000_000))
    (tmp_path / "1000_test.csv").write_bytes(TEST_CSV)
    with pytest.raises(ValueError, match="no rows under its first line"):
        data_of(str(tmp_path), tmp_path).setup()
