import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_lift.callbacks import PredictionWriter
from lightning_lift.callbacks.prediction_writer import _in_order
from lightning_lift.datamodules.tabular import TabularDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus
from lightning_lift.partition import Langevin
from tests.lightning_lift.callbacks.runs import make_trainer, small_data, small_model

COLUMNS = ["sepal length (cm)", "sepal width (cm)"]


def fitted(tmp_path: Path) -> tuple[Any, TabularDataModule]:
    data = TabularDataModule(table="load_iris", columns=COLUMNS, batch_size=16, eval_batch_size=7)
    model = small_model(dim=2)
    make_trainer(tmp_path, max_steps=3).fit(model, data)
    return model, data


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_rows_in_original_units_and_order_with_their_log_density(ending: str, tmp_path: Path) -> None:
    model, data = fitted(tmp_path)
    path = tmp_path / "new folder" / f"out.{ending}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, [PredictionWriter(str(path))]).predict(model, data)
    assert not [w for w in caught if "batch indices" in str(w.message)], "positions are known: nothing to complain of"
    if ending == "csv":
        table = pd.read_csv(path)
        assert list(table.columns) == [*COLUMNS, "log_density"]
        rows, log_density = table[COLUMNS].to_numpy(), table["log_density"].to_numpy()
    else:
        with np.load(path) as arrays:
            rows, log_density = arrays["rows"], arrays["log_density"]
            assert arrays["columns"].tolist() == COLUMNS
    training = data.split("predict")
    original = data.location.double() + data.scale.double() * training.double()
    np.testing.assert_allclose(rows, original.numpy(), rtol=1e-8)
    np.testing.assert_allclose(rows, rows.round(1), atol=1e-5)  # the table has one decimal
    model.eval()
    with torch.no_grad():
        expected = model.log_prob_scaled(training).double() - data.log_scale
    np.testing.assert_allclose(log_density, expected.numpy(), rtol=1e-5, atol=1e-5)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no temporary file may be left"


def test_a_plain_loader_without_data_module(tmp_path: Path) -> None:
    model, data = small_model(), small_data()
    make_trainer(tmp_path, max_steps=2).fit(model, data)
    rows = torch.randn(10, 1, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "out.csv"
    path.write_text("an older file")
    make_trainer(tmp_path, [PredictionWriter(str(path))]).predict(model, DataLoader(rows, batch_size=4))
    table = pd.read_csv(path)
    assert list(table.columns) == ["x1", "log_density"]
    np.testing.assert_allclose(table["x1"], rows[:, 0].numpy(), rtol=1e-6)


def test_an_interrupted_prediction_leaves_the_older_file(tmp_path: Path) -> None:
    model, data = fitted(tmp_path)
    path = tmp_path / "out" / "out.csv"
    path.parent.mkdir()
    path.write_text("an older file")
    model.predict_step = lambda batch, batch_idx: 1 / 0 if batch_idx == 1 else batch[:, 0]
    with pytest.raises(ZeroDivisionError):
        make_trainer(tmp_path, [PredictionWriter(str(path))]).predict(model, data)
    assert path.read_text() == "an older file"
    assert len(list(path.parent.iterdir())) == 1


def test_shards_of_two_ranks_go_back_to_the_order_of_the_data() -> None:
    rows = torch.arange(7.0)[:, None]
    # Rank 0 and rank 1 of a distributed sampler, which repeats row 0 to make the shards even.
    shards = [[0, 2, 4, 6], [1, 3, 5, 0]]
    parts = [(shard, rows[shard], 10.0 * rows[shard, 0]) for shard in shards]
    ordered, log_density = _in_order(parts)
    assert torch.equal(ordered, rows)
    assert torch.equal(log_density, 10.0 * rows[:, 0])


def test_predictions_that_are_not_one_number_a_row_are_refused(tmp_path: Path) -> None:
    model, data = fitted(tmp_path)
    model.predict_step = lambda batch, batch_idx: batch
    with pytest.raises(TypeError, match=r"LogConcaveEBM returned \(7, 2\)"):
        make_trainer(tmp_path, [PredictionWriter(str(tmp_path / "out.csv"))]).predict(model, data)


def test_several_loaders_are_refused(tmp_path: Path) -> None:
    model, data = small_model(), small_data()
    make_trainer(tmp_path, max_steps=2).fit(model, data)
    model.predict_step = lambda batch, batch_idx, dataloader_idx: batch[:, 0]
    loaders = [DataLoader(torch.zeros(4, 1), batch_size=2)] * 2
    with pytest.raises(ValueError, match="2 predict data loaders"):
        make_trainer(tmp_path, [PredictionWriter(str(tmp_path / "out.csv"))]).predict(model, loaders)


@pytest.mark.parametrize("path", ["out.txt", "out", "out.parquet"])
def test_unknown_endings_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"\.csv or \.npz"):
        PredictionWriter(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        PredictionWriter(str(tmp_path / "out.csv"))


@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_samples_in_original_units_with_what_is_known_of_them(ending: str, tmp_path: Path) -> None:
    data = TabularDataModule(table="load_iris", columns=COLUMNS, batch_size=16)
    model = LogConcaveEBM(2, functools.partial(ICNN, widths=(8, 8)), DirectSoftplus, Langevin, learning_rate=1e-2)
    make_trainer(tmp_path, max_steps=3, num_sanity_val_steps=0, limit_val_batches=0).fit(model, data)
    path = tmp_path / f"out.{ending}"
    make_trainer(tmp_path, [PredictionWriter(str(path), num_samples=200, sample_seed=3)]).predict(model, data)
    if ending == "csv":
        table = pd.read_csv(tmp_path / "out_samples.csv")
        assert list(table.columns) == COLUMNS
        found = table.to_numpy()
    else:
        with np.load(tmp_path / "out_samples.npz") as arrays:
            found = arrays["samples"]
            assert arrays["columns"].tolist() == COLUMNS
    expected = model.sample(200, seed=3)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)
    known = json.loads((tmp_path / "out_samples.json").read_text())
    assert known["num_samples"] == 200
    assert known["seed"] == 3
    assert 0.99 < known["r_hat"] < 1.1
    assert known["effective_sample_size"] > 200
    assert path.exists(), "the predictions are written as well"


def test_samples_of_a_module_that_cannot_be_sampled_are_refused(tmp_path: Path) -> None:
    model, data = fitted(tmp_path)
    model.sample = None
    with pytest.raises(TypeError, match="LogConcaveEBM has no sample"):
        make_trainer(tmp_path, [PredictionWriter(str(tmp_path / "out.csv"), num_samples=5)]).predict(model, data)


def test_a_negative_number_of_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="num_samples=-1"):
        PredictionWriter(num_samples=-1)
