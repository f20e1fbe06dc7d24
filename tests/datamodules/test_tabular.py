import gzip
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.datasets import load_iris

from lightning_lift.datamodules import TabularDataModule, table_files, unpacking

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {"height": RNG.normal(170, 8, 200), "weight": RNG.gamma(20, 3.5, 200), "count": RNG.integers(0, 1000, 200)}
)


def write(path: Path, frame: pd.DataFrame = TABLE) -> str:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".npy":
        np.save(path, frame.to_numpy())
    else:
        np.savez(path, **{name: frame[name].to_numpy() for name in frame})
    return str(path)


def text(path: Path, content: str) -> str:
    path.write_text(content)
    return str(path)


def lines(header: str, *rows: str) -> str:
    return "\n".join([header, *rows, *(f"{i},{i * i % 7}" for i in range(60))]) + "\n"


def tabular(**arguments: object) -> TabularDataModule:
    return TabularDataModule(**{"batch_size": 16, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix) -> None:
    data = tabular(path=write(tmp_path / f"people{suffix}"))
    assert data.dim == 3 and data.name == "people"  # before setup, as the command line links it
    assert data.columns == (["0", "1", "2"] if suffix == ".npy" else list(TABLE))
    data.setup()
    parts = [data.split(key) for key in ("train", "val", "test")]
    assert [len(part) for part in parts] == [160, 20, 20]
    original = data.units.invert(torch.cat(parts).double())
    expected = TABLE.to_numpy()
    got = original.numpy()[np.argsort(original[:, 0])]
    np.testing.assert_allclose(got, expected[np.argsort(expected[:, 0])], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("standardize", ["whiten", "columns", True])
def test_standardisation_uses_the_training_rows_only_and_is_undone_by_log_scale(tmp_path, standardize) -> None:
    data = tabular(path=write(tmp_path / "a.csv"), standardize=standardize)
    data.setup()
    train = data.split("train").double()
    assert torch.allclose(train.mean(dim=0), torch.zeros(3).double(), atol=1e-6)
    assert torch.allclose(train.std(dim=0, correction=0), torch.ones(3).double(), atol=1e-6)
    assert abs(float(data.split("val").mean())) > 1e-4
    original = data.units.invert(train)
    assert torch.allclose(original.std(dim=0, correction=0), data.units.spread, rtol=1e-5)
    covariance, served = (torch.cov(rows.T, correction=0) for rows in (original, train))
    assert 2 * data.log_scale == pytest.approx(float(torch.logdet(covariance) - torch.logdet(served)), rel=1e-5)
    assert torch.allclose(served, torch.eye(3).double(), atol=1e-5) == (standardize == "whiten")


def test_without_standardisation(tmp_path) -> None:
    data = tabular(path=write(tmp_path / "a.csv"), standardize=False)
    assert data.log_scale == 0.0 and torch.equal(data.location, torch.zeros(3))
    assert data.split("train").mean(dim=0)[0] > 100


def test_splits_are_disjoint_seeded_and_repeatable(tmp_path) -> None:
    path = write(tmp_path / "a.csv")
    one, two, other = tabular(path=path), tabular(path=path), tabular(path=path, data_seed=1)
    joined = torch.cat([one.split(key) for key in ("train", "val", "test")])
    assert len(torch.unique(joined, dim=0)) == 200
    assert all(torch.equal(one.split(key), two.split(key)) for key in ("train", "val", "test"))
    assert not torch.equal(one.split("train"), other.split("train"))
    pairs = zip(one.train_dataloader(), two.train_dataloader(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert len(one.train_dataloader()) == 10
    assert torch.equal(torch.cat(list(one.calibration_dataloader())), one.split("train"))


def test_window_and_support(tmp_path) -> None:
    data = tabular(path=write(tmp_path / "a.csv"))
    with pytest.raises(RuntimeError, match=r"window of 'a' is computed from the data: call setup\(\) first"):
        _ = data.window
    with pytest.raises(RuntimeError, match=r"units of .a. are computed"):
        _ = data.location
    train = data.split("train")
    assert bool((data.window[0] < train.amin(dim=0)).all() and (data.window[1] > train.amax(dim=0)).all())
    assert bool(torch.isinf(data.support).all()) and not data.has_log_prob and data.entropy is None


@pytest.mark.parametrize("columns", [["count", "height"], [2, 0], ["count", 0]])
@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_columns_by_name_and_position(tmp_path, suffix, columns) -> None:
    data = tabular(path=write(tmp_path / f"a{suffix}"), columns=columns, standardize=False)
    assert data.columns == ["count", "height"] and data.dim == 2
    assert data.split("train")[:, 0].mean() > 300 and 150 < data.split("train")[:, 1].mean() < 190


@pytest.mark.parametrize(
    ("table", "dim"), [("load_iris", 4), ("load_wine", 13), ("load_breast_cancer", 30), ("load_diabetes", 10)]
)
def test_tables_of_scikit_learn(table, dim) -> None:
    data = tabular(table=table)
    assert data.dim == dim and data.name == table.removeprefix("load_")
    assert data.split("train").dtype == torch.float32


def test_columns_of_a_shipped_table() -> None:
    data = tabular(table="load_iris", columns=["petal length (cm)", 0], standardize=False)
    rows = torch.cat([data.split(key) for key in ("train", "val", "test")])
    expected = load_iris().data[:, [2, 0]].astype(np.float32)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, expected.tolist()))


def test_predict_rows_come_from_the_test_split_or_a_file_in_its_order(tmp_path) -> None:
    path = write(tmp_path / "a.csv")
    own = tabular(path=path, columns=["height", "weight"])
    assert torch.equal(torch.cat(list(own.predict_dataloader())), own.split("test"))
    new = TABLE[["weight", "count", "height"]].head(3)  # another order, and a constant would be no fault
    data = tabular(path=path, columns=["height", "weight"], predict_path=write(tmp_path / "new.parquet", new))
    served = torch.cat(list(data.predict_dataloader()))
    rows = data.units.invert(served)
    np.testing.assert_allclose(rows.numpy(), new[["height", "weight"]].to_numpy(), rtol=1e-5)
    assert torch.equal(data.split("test"), own.split("test"))


def test_predict_rows_of_arrays_are_matched_by_position(tmp_path) -> None:
    path = write(tmp_path / "a.npy")
    data = tabular(path=path, columns=[1], predict_path=write(tmp_path / "b.csv"), standardize=False)
    np.testing.assert_allclose(data.split("predict")[:, 0].numpy(), TABLE["weight"].to_numpy(), rtol=1e-6)


def test_one_dimensional_array_is_one_column(tmp_path) -> None:
    np.save(tmp_path / "a.npy", TABLE["height"].to_numpy())
    assert tabular(path=str(tmp_path / "a.npy")).split("train").shape == (160, 1)


def test_parquet_index_is_no_column(tmp_path) -> None:
    TABLE.iloc[::-1].to_parquet(tmp_path / "a.parquet")
    assert tabular(path=str(tmp_path / "a.parquet")).columns == list(TABLE)


def test_hyperparameters_are_plain_for_a_path_object(tmp_path) -> None:
    write(tmp_path / "a.csv")
    data = TabularDataModule(path=tmp_path / "a.csv", columns=("height",), batch_size=8)  # type: ignore[arg-type]
    torch.save(dict(data.hparams), tmp_path / "h.pt")
    loaded = torch.load(tmp_path / "h.pt", weights_only=True)
    assert loaded["path"] == str(tmp_path / "a.csv") and loaded["columns"] == ["height"]
    assert torch.equal(TabularDataModule(**loaded).split("val"), data.split("val"))


# Faults that the arguments or the header tell: refused at construction.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of path .* and table .*load_iris.* got neither"),
        ({"path": "a.csv", "table": "load_iris"}, "exactly one of .*got path='a.csv' and table='load_iris'"),
        ({"table": "load_titanic"}, "unknown table 'load_titanic'; scikit-learn ships load_breast_cancer"),
        ({"table": "load_iris", "columns": ["petal"]}, "no column 'petal'; known columns: 'sepal length"),
        ({"table": "load_iris", "columns": [5]}, "no column 5; known"),
        ({"table": "load_iris", "columns": [-1]}, "no column -1; known"),
        ({"table": "load_iris", "columns": []}, "no columns to use"),
        ({"table": "load_iris", "columns": [0, 0]}, "asked for twice"),
        ({"table": "load_iris", "val_fraction": 0.0}, "val_fraction must be between 0 and 1, exclusive, got 0.0"),
        ({"table": "load_iris", "test_fraction": 1.5}, "test_fraction must be"),
        ({"table": "load_iris", "val_fraction": 0.5, "test_fraction": 0.5}, "leaves no training rows"),
        ({"table": "load_iris", "batch_size": -2}, "batch_size must be an integer of at least 1, got -2"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        tabular(**arguments)


def test_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere\.csv'"):
        tabular(path="nowhere.csv")
    with pytest.raises(FileNotFoundError, match=r"no file 'nowhere\.csv'"):
        tabular(table="load_iris", predict_path="nowhere.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "is empty"),
        ("a.npy", "", "is empty"),
        ("a.csv", "\n\n", "no header line"),
        ("a.xlsx", "x", r"extension '\.xlsx'; supported are \.csv, \.npy, \.npz, \.parquet"),
        ("a", "x", "extension ''"),
        (
            "a.csv",
            "1.5,2\n3,4\n",
            "first line '1.5', '2' is numbers, not column names: if it is a row, set header: false; .* replace it",
        ),
        ("a.csv", "x;y\n3;4\n", "only column is named 'x;y'; columns must be separated by commas"),
        ("a.csv", "x,y\n3,4,5\n", "header has 2 names but the first row has 3 values"),
        ("a.csv", ",x\n0,4\n", r"position \[0\] have no name .*columns=\['x'\]"),
        ("a.csv", "x,x\n0,4\n", r"name\(s\) \['x'\] occur more than once"),
        ("a.npy", "not an array", r"cannot be read as a \.npy table"),
        ("a.npz", "not an archive", r"cannot be read as a \.npz table"),
        ("a.parquet", "not parquet", r"cannot be read as a \.parquet table"),
    ],
)
def test_bad_headers(tmp_path, name, content, message) -> None:
    with pytest.raises(ValueError, match=message):
        tabular(path=text(tmp_path / name, content))


def test_directory(tmp_path) -> None:
    with pytest.raises(ValueError, match="is a directory"):
        tabular(path=str(tmp_path))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
def test_cut_off_file(tmp_path, suffix) -> None:
    path = Path(write(tmp_path / f"a{suffix}"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"a{suffix}' cannot be read as a {suffix} table \(damaged or cut off"):
        tabular(path=str(path))


def test_bad_arrays(tmp_path) -> None:
    path = str(tmp_path / "a.npy")
    for array, message in [
        (np.zeros((2, 3, 4)), r"shape \(2, 3, 4\)"),
        (np.array(["a", "b"]), "not real numbers"),
        (np.zeros(3, dtype=complex), "complex128, not real"),
        (np.array([{}, None], dtype=object), "holds object, not real"),
    ]:
        np.save(path, array)
        with pytest.raises(ValueError, match=message):
            tabular(path=path)
    np.savez(tmp_path / "b.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(ValueError, match="one 2-D array, or several 1-D arrays of equal length"):
        tabular(path=str(tmp_path / "b.npz"))


def test_array_without_rows(tmp_path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 3)))
    with pytest.raises(ValueError, match=r"a\.npy.*shape \(0, 3\): no rows"):
        tabular(path=str(tmp_path / "a.npy")).setup()


def test_predict_file_lacks_a_column(tmp_path) -> None:
    path = write(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"new\.csv' has no column 'weight'; known columns: 'height', 'count'"):
        tabular(path=path, predict_path=write(tmp_path / "new.csv", TABLE[["height", "count"]]))


# Faults that only the values tell: refused in setup.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lines("x,y", ",1", "nan,2", "3,inf"),
            r"63 rows, .*'x' \(2 missing or NaN, 0 infinite\), 'y' \(0 missing or NaN, 1",
        ),
        (lines("x,y", "1,2", "1"), r"'y' \(1 missing"),
        (lines("x,y", "1"), "header has 2 names but the first row has 1 values"),
        (lines("x,y", "1,2", "1,2,3"), "more values|damaged or cut off"),
        (lines("x,y", "1,two"), r"not numeric: 'y' \(row 0: 'two'\)"),
        (lines("x,y", "1,2", '"3,4",5'), r"not numeric: 'x' \(row 1: '3,4'\)"),
        (
            "x,y\n" + "".join(f"{i},3.5\n" for i in range(60)),
            r"constant column\(s\) in the 48 training rows: 'y' \(3.5\)",
        ),
        ("x,y\n", "too few"),
        ("x,y\n1,2\n3,4\n", "2 rows are too few .*2 training, 0 validation, 0 test"),
    ],
)
def test_bad_values(tmp_path, content, message) -> None:
    with pytest.raises(ValueError, match=message):
        tabular(path=text(tmp_path / "a.csv", content)).setup()


def test_columns_can_leave_a_bad_column_out(tmp_path) -> None:
    frame = TABLE.assign(label="a", empty=np.nan)
    path = write(tmp_path / "a.parquet", frame)
    assert tabular(path=path, columns=["height", "count"]).split("train").shape == (160, 2)
    with pytest.raises(ValueError, match=r"not numeric: 'label' \(row 0: 'a'\); repair them or list other columns"):
        tabular(path=path).setup()


def test_constant_columns_of_a_shipped_table_are_named() -> None:
    with pytest.raises(ValueError, match=r"constant column\(s\) .*'pixel_0_0' \(0\)"):
        tabular(table="load_digits").setup()


def test_rows_to_predict_are_checked_too(tmp_path) -> None:
    path = write(tmp_path / "a.csv")
    bad = TABLE.head(3).assign(weight=[1.0, np.nan, 2.0])
    with pytest.raises(ValueError, match=r"new\.csv: 3 rows, .*'weight' \(1 missing"):
        tabular(path=path, predict_path=write(tmp_path / "new.csv", bad)).setup()
    with pytest.raises(ValueError, match="no rows to predict"):
        tabular(path=path, predict_path=write(tmp_path / "none.csv", TABLE.head(0))).setup()


def test_values_too_large_for_float32(tmp_path) -> None:
    path = write(tmp_path / "a.npy", TABLE * 1e40)
    with pytest.raises(ValueError, match=r"too large for float32: '0' \(.*e\+42\)"):
        tabular(path=path, standardize=False).setup()


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_file_without_a_header(tmp_path, suffix) -> None:
    path = tmp_path / f"a{suffix}"
    TABLE.to_csv(path, index=False, header=False)
    with pytest.raises(ValueError, match="set header: false"):
        tabular(path=str(path))
    data = tabular(path=str(path), header=False, columns=[2, 0], standardize=False)
    assert data.name == "a" and data.columns == ["2", "0"]
    rows = torch.cat([data.split(key) for key in ("train", "val", "test")])
    assert sorted(rows[:, 0].tolist()) == sorted(TABLE["count"].tolist())
    with pytest.raises(ValueError, match=r"header: false, and the first line is 'height', .* no row of numbers"):
        tabular(path=write(tmp_path / "b.csv"), header=False)
    with pytest.raises(ValueError, match=r"header: false belongs to a \.csv file"):
        tabular(path=write(tmp_path / "b.npy"), header=False)


def test_a_compressed_table(tmp_path) -> None:
    TABLE.to_csv(tmp_path / "people.csv.gz", index=False)
    data, plain = tabular(path=str(tmp_path / "people.csv.gz")), tabular(path=write(tmp_path / "people.csv"))
    assert data.name == "people" and torch.equal(data.split("train"), plain.split("train"))


def test_decompression_is_bounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(unpacking, "_FREE", 1000)
    rows = "1.5\n" * 100_000
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n" + rows.encode()))
    with pytest.raises(ValueError, match=r"unpacks to more than [\d,]+ bytes"):
        tabular(path=str(tmp_path / "a.csv.gz")).setup()
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1_000_000))
    with pytest.raises(ValueError, match=r"unpacks from [\d,]+ to 8,000,128 bytes"):
        tabular(path=str(tmp_path / "a.npz"))
    pd.DataFrame({"x": np.zeros(1_000_000)}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"unpacks from [\d,]+ to 8,000,000 bytes"):
        tabular(path=str(tmp_path / "a.parquet")).setup()


def test_an_array_that_states_more_than_its_file_holds(tmp_path) -> None:
    for shape in ("(99999999999, 3)", "(4, 3)"):
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.encode() + bytes(80))
        with pytest.raises(ValueError, match="its file is too small"):
            tabular(path=str(tmp_path / "a.npy"))


def test_columns_can_be_dropped_by_name_and_position(tmp_path) -> None:
    path = write(tmp_path / "a.csv", TABLE.assign(label="a"))
    assert tabular(path=path, drop_columns=["label", 0]).columns == ["weight", "count"]
    assert tabular(path=path, columns=["count", "height"], drop_columns=["height"]).columns == ["count"]
    assert tabular(table="load_iris", drop_columns=[0, "petal width (cm)"]).dim == 2
    with pytest.raises(ValueError, match="no column 'lable'"):
        tabular(path=path, drop_columns=["lable"])
    with pytest.raises(ValueError, match="drop_columns leaves no columns"):
        tabular(path=path, columns=["label"], drop_columns=["label"])
    unnamed = text(tmp_path / "b.csv", lines(",x"))
    assert tabular(path=unnamed, drop_columns=[0]).columns == ["x"]


def test_rows_with_missing_values_can_be_dropped_and_keep_their_numbers(tmp_path) -> None:
    frame = TABLE.assign(height=TABLE["height"].where(TABLE.index % 10 != 3))
    path = write(tmp_path / "a.csv", frame)
    with pytest.raises(ValueError, match=r"'height' \(20 missing.*drop_missing: true"):
        tabular(path=path).setup()
    data = tabular(path=path, drop_missing=True, predict_path=path)
    with pytest.warns(UserWarning, match="20 of 200 rows left out"):
        data.setup()
    numbers = torch.cat([data.row_numbers[key] for key in ("train", "val", "test")])
    assert sorted(numbers.tolist()) == [i for i in range(200) if i % 10 != 3]
    for key in ("test", "predict"):
        rows = data.units.invert(data.split(key).double())
        expected = TABLE.to_numpy()[data.row_numbers[key].numpy()]
        np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-6, atol=1e-5)
    # a column that is not used may lack values
    assert len(tabular(path=path, columns=["weight", "count"]).split("train")) == 160


def test_a_named_index_is_a_column_where_it_is_asked_for(tmp_path) -> None:
    path = str(tmp_path / "a.parquet")
    TABLE.rename_axis("id").to_parquet(path)
    TABLE.set_index(pd.Index(RNG.normal(size=200), name="height2")).to_parquet(tmp_path / "b.parquet")
    data = tabular(path=path)
    assert data.columns == list(TABLE) and len(data.split("train")) == 160
    asked = tabular(path=str(tmp_path / "b.parquet"), columns=["height2", "weight"])
    assert asked.columns == ["height2", "weight"] and asked.split("train").shape == (160, 2)


EXACT = [np.float16, np.float32, ">f8", np.int8, np.uint64, np.int64]
REFUSED = {
    "timedelta": np.arange(60).astype("timedelta64[s]"),
    "datetime": np.arange(60).astype("datetime64[D]"),
    "bool": np.arange(60) % 2 == 0,
    "complex": np.arange(60) + 1j,
    "longdouble": np.arange(60).astype(np.longdouble),
    "string": np.array([str(i) for i in range(60)]),
    "uint64": np.arange(60).astype(np.uint64) + np.uint64(2**53),
    "int64": -np.arange(60) - 2**53,
}


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
@pytest.mark.parametrize("dtype", EXACT)
def test_types_that_float64_holds_are_read_exactly(tmp_path, suffix, dtype) -> None:
    values = (np.arange(60) * 2).astype(dtype)
    frame = pd.DataFrame({"x": values.astype(np.dtype(dtype).newbyteorder("=")), "y": np.linspace(0, 1, 60)})
    if suffix == ".parquet":
        frame.to_parquet(tmp_path / "a.parquet")
    elif suffix == ".npy":
        np.save(tmp_path / "a.npy", values)
    else:
        np.savez(tmp_path / "a.npz", x=values, y=frame["y"].to_numpy())
    data = tabular(path=str(tmp_path / f"a{suffix}"), columns=[0])
    data.setup()
    rows = data.units.invert(torch.cat([data.split(key) for key in ("train", "val", "test")]).double())
    assert sorted(rows[:, 0].round().tolist()) == (np.arange(60) * 2.0).tolist()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".csv"])
@pytest.mark.parametrize("kind", REFUSED)
def test_types_that_float64_does_not_hold_are_refused(tmp_path, suffix, kind) -> None:
    path, values = tmp_path / f"a{suffix}", REFUSED[kind]
    if suffix == ".npy":
        np.save(path, values)
    elif suffix == ".npz":
        np.savez(path, x=values, y=values)
    elif kind in ("complex", "longdouble") or (kind == "string" and suffix == ".csv"):
        return  # the format has no such type
    else:
        frame = pd.DataFrame({"x": values, "y": np.arange(60.0)})
        frame.to_parquet(path) if suffix == ".parquet" else frame.to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"not real numbers|not numeric|no exact float64|does not hold exactly"):
        tabular(path=str(path)).setup()


@pytest.mark.parametrize("kind", ["decimal", "category", "nullable"])
def test_types_of_parquet_alone(tmp_path, kind) -> None:
    columns = {
        "decimal": pa.array([Decimal(i) for i in range(60)]),
        "category": pa.array([str(i) for i in range(60)]).dictionary_encode(),
        "nullable": pa.array([None, *range(2**53 + 1, 2**53 + 60)]),
    }
    pq.write_table(pa.table({"x": columns[kind]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="'x'"):
        tabular(path=str(tmp_path / "a.parquet")).setup()


# What is warned of.


def degenerate(tmp_path, recwarn, **columns: object) -> str:
    tabular(path=write(tmp_path / "a.csv", TABLE.assign(**columns))).setup()
    return " ".join(str(w.message) for w in recwarn)


@pytest.mark.parametrize(
    "column",
    [
        RNG.integers(0, 2, 200),
        RNG.integers(0, 20, 200),
        RNG.normal(size=200).round(0),
        np.maximum(RNG.normal(size=200), 0),
    ],
)
def test_discrete_columns_are_named(tmp_path, recwarn, column) -> None:
    said = degenerate(tmp_path, recwarn, level=column)
    assert "1 discrete column(s), 'level' (" in said and "no upper bound" in said and "drop_columns" in said


@pytest.mark.parametrize(
    "function",
    [lambda t: t.height, lambda t: t.height + 2 * t.weight, lambda t: (t.height - 0.3 * t.weight + 5).astype("f4")],
)
def test_linearly_dependent_columns_are_named(tmp_path, recwarn, function) -> None:
    said = degenerate(tmp_path, recwarn, total=function(TABLE), free=RNG.normal(size=200))
    assert "'total' are linearly dependent in the 160 training rows (1 too many)" in said
    assert "'height'" in said and "'free'" not in said


def test_ordinary_columns_and_correlated_ones_are_not_warned_of(tmp_path, recwarn) -> None:
    noisy = TABLE.height + 1e-3 * RNG.normal(size=200)
    assert not degenerate(tmp_path, recwarn, noisy=noisy, skewed=np.exp(2 * RNG.normal(size=200)))


@pytest.mark.parametrize("standardize", [True, False])
def test_one_row_far_from_all_others(tmp_path, recwarn, standardize) -> None:
    """1e30 takes float32's digits from the other rows, if they train; 1e7 only the meaning of mean and deviation."""
    path = write(tmp_path / "a.csv", TABLE.assign(weight=TABLE["weight"].where(TABLE.index != 7, 1e30)))
    if standardize:
        with pytest.raises(ValueError, match=r"column 'weight' float32 tells \d+ apart beside 1e\+30"):
            tabular(path=path).setup()
    path = write(tmp_path / "b.csv", TABLE.assign(weight=TABLE["weight"].where(TABLE.index != 7, 1e7)))
    tabular(path=path, standardize=standardize).setup()
    assert "1e+07 in 'weight' (train split)" in " ".join(str(w.message) for w in recwarn)


def test_a_large_mean_that_is_not_standardised_away_is_refused(tmp_path) -> None:
    path = write(tmp_path / "a.csv", TABLE + 1e9)
    with pytest.raises(ValueError, match=r"'height' float32 tells \d+ apart .* set standardize: true"):
        tabular(path=path, standardize=False).setup()
    tabular(path=path).setup()


# Rows to predict without a training table.


@pytest.mark.parametrize("table", [None, "no longer here.csv"])
def test_rows_to_predict_alone(tmp_path, table) -> None:
    path = write(tmp_path / "new.csv", TABLE.head(5))
    data = tabular(path=table, predict_path=path, columns=["weight", "height"])
    assert data.dim == 2 and data.columns == ["weight", "height"]
    data.setup("predict")
    rows = data.units.invert(torch.cat(list(data.predict_dataloader())).double())
    np.testing.assert_allclose(rows.numpy(), TABLE.head(5)[["weight", "height"]].to_numpy(), rtol=1e-6)
    assert data.row_numbers["predict"].tolist() == [0, 1, 2, 3, 4]
    for stage in ("fit", "test"):
        with pytest.raises(
            (ValueError, FileNotFoundError), match="training table as path" if table is None else "no file"
        ):
            data.setup(stage)
    with pytest.raises(ValueError, match="has no split 'train', only"):
        data.train_dataloader()


@pytest.mark.parametrize(("mean", "deviation"), [(1e12, 1e-2), (1e9, 1e-3), (0, 1e-170), (0, 1e170)])
def test_a_spread_far_below_the_mean_is_standardised(tmp_path, mean, deviation) -> None:
    np.save(tmp_path / "a.npy", mean + deviation * np.random.default_rng(0).normal(size=(20_000, 2)))
    data = tabular(path=str(tmp_path / "a.npy"))
    data.setup()
    train = data.split("train")
    torch.testing.assert_close(train.std(0), torch.ones(2), rtol=1e-3, atol=0)
    torch.testing.assert_close(data.units.spread / deviation, torch.ones(2).double(), rtol=0.02, atol=0)
    assert float(train.mean(0).abs().max()) < 1e-2  # 1e12 is known to 1.2e-4


def test_rows_to_predict_keep_their_digits_beside_a_far_one(tmp_path) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 2))
    rows[7] = 1e8
    np.save(tmp_path / "new.npy", rows)
    data = tabular(predict_path=str(tmp_path / "new.npy"))
    data.setup("predict")
    found = data.units.invert(data.split("predict").double())
    np.testing.assert_allclose(found.numpy(), rows, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "header",
    ["{'descr': '<f8', 'fortran_order': False, 'shape': (0, 30000000)}", "(" * 3000, "{'descr': ('<f8', True)}"],
)
def test_hostile_headers_of_arrays(tmp_path, header) -> None:
    content = header.encode() + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0" + len(content).to_bytes(2, "little") + content + bytes(64))
    with pytest.raises(ValueError, match=r"a\.npy"):
        tabular(path=str(tmp_path / "a.npy"))


@pytest.mark.parametrize("notes", ["[]", '{"index_columns": null}', "[" * 100_000])
def test_hostile_notes_of_pandas_in_parquet(tmp_path, notes) -> None:
    pq.write_table(pa.table({"a": [1.0]}).replace_schema_metadata({"pandas": notes}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet' cannot be read"):
        tabular(path=str(tmp_path / "a.parquet"))


def test_wide_tables_are_not_quadratic(tmp_path) -> None:
    names = [f"c{i}" for i in range(50_000)]  # two minutes where each is looked for among all
    assert table_files.resolve_columns(None, names, "wide") == list(range(50_000))
