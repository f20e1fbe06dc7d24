import functools
import json
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from torch.utils.data import DataLoader

from lightning_lift.callbacks import PredictionWriter
from lightning_lift.callbacks.prediction_writer import _in_order
from lightning_lift.datamodules.tabular import TabularDataModule
from lightning_lift.modules import ConvexModule, LogConcaveEBM
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
        assert list(table.columns) == ["row", *COLUMNS, "log_density"]
        numbers, rows, log_density = table["row"], table[COLUMNS].to_numpy(), table["log_density"].to_numpy()
    else:
        with np.load(path) as arrays:
            numbers, rows, log_density = arrays["row"], arrays["rows"], arrays["log_density"]
            assert arrays["columns"].tolist() == COLUMNS
    training = data.split("predict")
    original = data.units.invert(training.double())
    np.testing.assert_allclose(rows, original.numpy(), rtol=1e-8)
    np.testing.assert_allclose(rows, load_iris().data[np.asarray(numbers), :2], atol=1e-5)
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
    make_trainer(tmp_path, [PredictionWriter(str(path))]).predict(model, DataLoader(rows, batch_size=4))
    table = pd.read_csv(path)
    assert list(table.columns) == ["row", "x1", "log_density"] and table["row"].tolist() == list(range(10))
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
    positions, ordered, log_density = _in_order(parts)
    assert torch.equal(positions, torch.arange(7)) and torch.equal(ordered, rows)
    assert torch.equal(log_density, 10.0 * rows[:, 0])


def test_predictions_that_are_not_one_number_a_row_are_refused(tmp_path: Path) -> None:
    model, data = fitted(tmp_path)
    model.predict_step = lambda batch, batch_idx: batch
    with pytest.raises(TypeError, match=r"LogConcaveEBM returned \(7, 2\)"):
        make_trainer(tmp_path, [PredictionWriter(str(tmp_path / "out.csv"))]).predict(model, data)


def test_into_the_runs_folder_and_never_over_an_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, data = fitted(tmp_path)
    trainer = make_trainer(tmp_path, [PredictionWriter(num_samples=3)])
    for _ in range(3):
        trainer.predict(model, data)
    folder = Path(trainer.log_dir)
    names = {path.name for path in folder.iterdir() if path.name.startswith("predictions")}
    expected = [f"predictions{n}{end}" for n in ("", "_1", "_2") for end in (".csv", "_samples.csv", "_samples.json")]
    assert names == set(expected)
    assert not list(tmp_path.glob("predictions*"))
    (folder / "predictions.csv").write_text("an older file")
    trainer.predict(model, data)
    assert (folder / "predictions.csv").read_text() == "an older file" and (folder / "predictions_3.csv").exists()


@pytest.mark.parametrize("settings", [{"fast_dev_run": True}, {"logger": False}])
def test_nothing_is_written_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict) -> None:
    model, data = fitted(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    trainer = L.Trainer(accelerator="cpu", enable_progress_bar=False, callbacks=[PredictionWriter()], **settings)
    trainer.predict(model, data)
    assert list((tmp_path / "here").iterdir()) == []


def test_the_columns_asked_for(tmp_path: Path) -> None:
    model, data = fitted(tmp_path)
    for name, columns in (("one", COLUMNS[1:]), ("none", [])):
        writer = PredictionWriter(str(tmp_path / f"{name}.csv"), columns=columns)
        make_trainer(tmp_path, [writer]).predict(model, data)
        assert list(pd.read_csv(tmp_path / f"{name}.csv").columns) == ["row", *columns, "log_density"]
    with pytest.raises(ValueError, match=r"no columns \['petal'\], only \['sepal length"):
        make_trainer(tmp_path, [PredictionWriter(columns=["petal"])]).predict(model, data)


def test_a_task_names_its_predictions(tmp_path: Path) -> None:
    """A regression's value is no log-density; a task of several outputs names each."""

    class Regression(ConvexModule):
        def loss(self, potential, batch):
            return potential.value(batch).square().mean()

    class Both(Regression):
        prediction_columns = ("value", "slope")

        def predict_step(self, batch, batch_idx):
            value, gradient = self.potential().value(batch), self.potential().gradient(batch)
            return torch.stack([value, gradient[:, 0]], dim=1)

    module = Regression(2, functools.partial(ICNN, widths=(8, 8)), DirectSoftplus)
    with pytest.raises(ValueError, match=r"whitens its rows.*Regression is no density.*'columns'"):
        make_trainer(tmp_path).predict(module, TabularDataModule(table="load_iris", columns=COLUMNS))
    data = TabularDataModule(table="load_iris", columns=COLUMNS, batch_size=16, standardize="columns")
    for cls, names in ((Regression, ["prediction"]), (Both, ["value", "slope"])):
        module = cls(2, functools.partial(ICNN, widths=(8, 8)), DirectSoftplus)
        path = tmp_path / f"{cls.__name__}.csv"
        make_trainer(tmp_path, [PredictionWriter(str(path), columns=[])]).predict(module, data)
        table = pd.read_csv(path)
        assert list(table.columns) == ["row", *names]
        expected = module.potential().value(data.split("test")).detach().numpy()
        np.testing.assert_allclose(table[names[0]], expected, rtol=1e-5)


def test_rows_of_a_new_file_without_the_training_table(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """The columns in another order, one row incomplete, the mean large: as the fitted model sees them."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(1e6, 1.0, 200), "b": rng.gamma(3.0, size=200)})
    table.to_csv(tmp_path / "table.csv", index=False)
    model, data = small_model(dim=2), TabularDataModule(path=str(tmp_path / "table.csv"), batch_size=32)
    make_trainer(tmp_path, max_steps=3).fit(model, data)
    new = table.iloc[[5, 9, 2, 7]].reset_index(drop=True)
    new.loc[1, "b"] = np.nan
    new[["b", "a"]].to_csv(tmp_path / "new.csv", index=False)
    rows = TabularDataModule(path="gone.csv", predict_path=str(tmp_path / "new.csv"), drop_missing=True)
    make_trainer(tmp_path, [PredictionWriter(str(tmp_path / "out.csv"))]).predict(model, rows)
    assert not [w for w in recwarn if "trained on" in str(w.message)]
    written = pd.read_csv(tmp_path / "out.csv")
    assert list(written.columns) == ["row", "b", "a", "log_density"] and written["row"].tolist() == [0, 2, 3]
    np.testing.assert_allclose(written["a"], new["a"].iloc[[0, 2, 3]], atol=1e-6, rtol=0)
    expected = model.freeze().log_prob(torch.tensor(new.iloc[[0, 2, 3]].to_numpy()))
    np.testing.assert_allclose(written["log_density"], expected.numpy(), atol=1e-4)


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
