"""A checkpoint is evaluated in the units that it was fitted in, whatever the attached data module standardises by."""

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_lift.callbacks import DensityFigure, PredictionWriter
from lightning_lift.datamodules import TabularDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus
from lightning_lift.testing import ModuleContract


def table(folder: Path, name: str, shift: float, factor: float) -> TabularDataModule:
    rows = np.random.default_rng(0).gamma(3.0, size=(300, 2))
    pd.DataFrame({"a": rows[:, 0] + shift, "b": factor * rows[:, 1]}).to_csv(folder / name, index=False)
    return TabularDataModule(path=str(folder / name), columns=["a", "b"], batch_size=32)


def fitted(folder: Path) -> tuple[LogConcaveEBM, TabularDataModule]:
    torch.manual_seed(0)
    data = table(folder, "own.csv", 0.0, 1.0)
    module = LogConcaveEBM(2, functools.partial(ICNN, widths=[8, 8]), DirectSoftplus, learning_rate=1e-2)
    trainer = ModuleContract()._trainer(max_steps=20)
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(folder / "own.ckpt")
    return module, data


@pytest.mark.parametrize("loaded", [False, True], ids=["live", "by ckpt_path"])
def test_another_table_is_scored_by_the_fitted_density(tmp_path: Path, loaded: bool) -> None:
    module, _ = fitted(tmp_path)
    frozen = module.freeze()
    other = table(tmp_path, "other.csv", 1.0, 1.5)
    writer = PredictionWriter(str(tmp_path / "rows.csv"))
    trainer = ModuleContract()._trainer(callbacks=[writer, DensityFigure()], default_root_dir=tmp_path)
    evaluated: dict = {"ckpt_path": tmp_path / "own.ckpt", "weights_only": True} if loaded else {}
    if loaded:
        module = LogConcaveEBM(2, functools.partial(ICNN, widths=[8, 8]), DirectSoftplus)
    metrics = trainer.test(module, datamodule=other, verbose=False, **evaluated)[0]
    rows = other.location.double() + other.scale.double() * other.split("test").double()
    expected = frozen.log_prob(rows)
    assert metrics["test/nll_original"] == pytest.approx(-float(expected.mean()), abs=1e-4)
    trainer.predict(module, datamodule=other, **evaluated)
    written = pd.read_csv(tmp_path / "rows.csv")
    np.testing.assert_allclose(written[["a", "b"]].to_numpy(), rows.numpy(), rtol=1e-6)
    np.testing.assert_allclose(written["log_density"], expected.numpy(), rtol=1e-4, atol=1e-4)
    after = module.freeze()
    torch.testing.assert_close(after.log_prob(rows), expected, rtol=1e-5, atol=1e-5)


def test_resuming_on_another_table_is_refused(tmp_path: Path) -> None:
    fitted(tmp_path)
    module = LogConcaveEBM(2, functools.partial(ICNN, widths=[8, 8]), DirectSoftplus)
    other = table(tmp_path, "other.csv", 1.0, 1.5)
    with pytest.raises(ValueError, match="other units"):
        ModuleContract()._trainer(max_steps=40).fit(
            module, datamodule=other, ckpt_path=tmp_path / "own.ckpt", weights_only=True
        )


def test_frozen_densities_take_float64_rows(tmp_path: Path) -> None:
    module, data = fitted(tmp_path)
    frozen = module.freeze()
    rows = data.location + data.scale * data.split("test")
    torch.testing.assert_close(frozen.log_prob(rows.double()), frozen.log_prob(rows), rtol=1e-4, atol=1e-4)
