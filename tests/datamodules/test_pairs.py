"""Pairs and triples: which columns and arrays are x, context, target and weight, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_lift.datamodules import Batch, PairsDataModule
from lightning_lift.testing import DataModuleContract

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "price": RNG.normal(20, 3, 100),
        "income": RNG.normal(1e6, 10, 100),
        "day": RNG.integers(0, 7, 100),
        "sold": RNG.poisson(9, 100),
        "share": RNG.uniform(size=100),
        "count": RNG.integers(1, 5, 100),
    }
)
ROLES = {"context": ["day"], "target": ["sold", "share"], "weight": "count"}


def write(path: Path, frame: pd.DataFrame = TABLE) -> str:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".npy":
        np.save(path, frame.to_numpy())
    else:
        frame.to_parquet(path)
    return str(path)


def original(data: PairsDataModule, key: str) -> dict[str, np.ndarray]:
    """Parts of a split in original units, one column for each number."""
    rows, units = data.split(key), data.field_units | {"x": data.units}
    parts = {name: part.double() for name, part in rows._asdict().items() if part is not None}
    brought = {name: units[name].invert(part) if name in units else part for name, part in parts.items()}
    return {name: part.reshape(len(part), -1).numpy() for name, part in brought.items()}


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet"])
def test_each_column_of_a_file_is_served_as_the_part_that_it_is(tmp_path, suffix) -> None:
    roles = ROLES if suffix != ".npy" else {"context": [2], "target": [3, 4], "weight": 5}
    data = PairsDataModule(path=write(tmp_path / f"shop{suffix}"), **roles)
    assert (data.name, data.dim, data.context_shape, data.target_dim) == ("shop", 2, (1,), 2)  # before setup
    if suffix != ".npy":
        assert data.columns == ["price", "income"]
        assert data.field_columns == {"context": ["day"], "target": ["sold", "share"]}
    for key, count in (("train", 80), ("val", 10), ("test", 10)):
        expected = TABLE.iloc[data.row_numbers[key].numpy()] if data.split(key) is not None else TABLE
        parts = original(data, key)
        for name, columns in {"x": ["price", "income"], **ROLES, "weight": ["count"]}.items():
            np.testing.assert_allclose(parts[name], expected[columns].to_numpy(), rtol=1e-6, atol=1e-6)
            assert len(parts[name]) == count
    assert data.batch_size == 80 and data.split("train").target.shape == (80, 2)
    assert data.split("train").weight.shape == (80,)


def test_shipped_tables_have_a_target() -> None:
    data = PairsDataModule(table="load_diabetes", x=["bmi", "bp"], target="target")
    assert data.columns == ["bmi", "bp"] and data.target_dim == 1 and data.context_shape is None
    assert data.split("val").target.shape == (44,) and data.split("val").context is None
    assert "target" not in PairsDataModule(table="load_diabetes", target="target").columns
    raw = PairsDataModule(table="load_iris", target="target", standardize=["x"])
    assert raw.split("train").target.unique().tolist() == [0, 1, 2] and raw.field_units == {}


def test_rows_to_predict_need_no_target_and_no_training_table(tmp_path) -> None:
    path, new = write(tmp_path / "shop.csv"), TABLE[["day", "income", "price"]].head(7)
    settings = {**ROLES, "predict_path": write(tmp_path / "new.parquet", new)}
    beside = PairsDataModule(path=path, **settings)
    np.testing.assert_allclose(original(beside, "predict")["x"], new[["price", "income"]], rtol=1e-6)
    assert beside.split("predict").target is None and beside.split("test").target is not None
    alone = PairsDataModule(path=str(tmp_path / "gone.csv"), **settings)
    alone.setup("predict")
    assert alone.columns == ["income", "price"]  # in the order of the file
    np.testing.assert_allclose(original(alone, "predict")["x"], new[["income", "price"]], rtol=1e-6)
    np.testing.assert_allclose(original(alone, "predict")["context"], new[["day"]], rtol=1e-6)
    with pytest.raises(FileNotFoundError, match="gone"):
        PairsDataModule(path=str(tmp_path / "gone.csv"), **settings).setup("fit")


def test_arrays_tensors_and_frames_in_memory() -> None:
    images = torch.randn(100, 3, 4, 4, dtype=torch.float64) * 5 + 2
    data = PairsDataModule.from_arrays(TABLE[["price", "income"]], images, TABLE["sold"], data_seed=3)
    assert data.columns == ["price", "income"] and data.context_shape == (3, 4, 4) and data.target_dim == 1
    places = data.row_numbers
    data.setup()
    places = data.row_numbers["val"]
    rows = data.split("val")
    assert rows.context.shape == (10, 3, 4, 4) and rows.target.shape == (10,)
    torch.testing.assert_close(data.field_units["context"].invert(rows.context.double()), images[places])
    np.testing.assert_allclose(original(data, "val")["target"][:, 0], TABLE["sold"].to_numpy()[places], atol=1e-5)
    column = PairsDataModule.from_arrays(torch.randn(50, 2), target=torch.randn(50, 1))
    assert column.split("train").target.shape == (40,)
    assert "_arrays" not in data.hparams and data.hparams["data_seed"] == 3


def test_settings_are_plain_and_make_the_same_rows_again(tmp_path) -> None:
    data = PairsDataModule(path=Path(write(tmp_path / "shop.csv")), x=("price",), **ROLES)  # type: ignore[arg-type]
    torch.save(dict(data.hparams), tmp_path / "h.pt")
    again = PairsDataModule(**torch.load(tmp_path / "h.pt", weights_only=True))
    assert all(torch.equal(a, b) for a, b in zip(again.split("train"), data.split("train"), strict=True))


def test_a_constant_column_is_warned_of_and_lost_digits_are_refused() -> None:
    x = np.column_stack([np.arange(50.0), np.ones(50)])
    with pytest.warns(UserWarning, match=r"constant column\(s\) of x in the 40 training rows: x2;"):
        assert PairsDataModule.from_arrays(x, target=x[:, 0]).split("train").x[:, 1].abs().max() == 0
    far = np.where(np.arange(50) == 0, 1e20, np.arange(50.0))
    with pytest.warns(UserWarning, match="interquartile"), pytest.raises(ValueError, match="float32 tells"):
        PairsDataModule.from_arrays(x[:, :1], target=far, data_seed=1).setup()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": ["sale"]}, "no column 'sale'"),
        ({"x": ["price"], "target": ["price"]}, "asked for twice"),
        ({"context": list(TABLE)}, "none is x"),
        ({"standardize": ["y"]}, r"standardize: \['y'\] is none of x, context, target"),
        ({"table": "load_iris"}, "exactly one of path"),
        ({"val_fraction": 1.0}, "val_fraction must be between"),
    ],
)
def test_bad_settings(tmp_path, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        PairsDataModule(path=write(tmp_path / "shop.csv"), **settings)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"x": torch.zeros(9)}, r"x must be \(rows, D\), got \(9,\)"),
        ({"x": torch.zeros(9, 2), "target": torch.zeros(8)}, "target has 8 entries and x 9: give one a row"),
        ({"x": np.array([["a"]] * 9)}, r"x of shape \(9, 1\) holds <U1, not real numbers"),
        ({"x": np.full((9, 1), np.nan)}, r"'x1' \(9 missing or NaN"),
    ],
)
def test_bad_arrays(parts, message) -> None:
    with pytest.raises(ValueError, match=message):
        PairsDataModule.from_arrays(**parts)


def test_negative_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="weights of training rows are negative"):
        PairsDataModule.from_arrays(torch.randn(30, 2), target=torch.randn(30), weight=torch.randn(30)).setup()


class TestContract(DataModuleContract):
    def make(self) -> PairsDataModule:
        generator = torch.Generator().manual_seed(0)
        x, context = torch.randn(90, 2, generator=generator), torch.randn(90, 2, 3, generator=generator)
        return PairsDataModule.from_arrays(x, context, x.square().sum(1), batch_size=8)


def test_a_batch_has_the_parts_that_are_stated() -> None:
    assert isinstance(next(iter(TestContract().make().train_dataloader())), Batch)
