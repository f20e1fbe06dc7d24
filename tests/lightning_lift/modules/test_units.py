"""A checkpoint is evaluated in the units that it was fitted in, whatever the attached data module standardises by."""

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

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
    rows = other.units.invert(other.split("test").double())
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
    rows = data.units.invert(data.split("test"))
    torch.testing.assert_close(frozen.log_prob(rows.double()), frozen.log_prob(rows), rtol=1e-4, atol=1e-4)


def csv(folder: Path, name: str, frame: pd.DataFrame, **settings: object) -> TabularDataModule:
    frame.to_csv(folder / name, index=False)
    return TabularDataModule(path=str(folder / name), batch_size=32, **settings)  # type: ignore[arg-type]


def fresh() -> LogConcaveEBM:
    return LogConcaveEBM(2, functools.partial(ICNN, widths=[8, 8]), DirectSoftplus)


def evaluated(folder: Path, data: TabularDataModule) -> float:
    trainer = ModuleContract()._trainer()
    known = {"ckpt_path": folder / "own.ckpt", "weights_only": True}
    metrics = trainer.test(fresh(), datamodule=data, verbose=False, **known)
    return float(metrics[0]["test/nll_original"])


def test_columns_in_another_order_are_put_in_order_and_other_columns_are_refused(tmp_path: Path) -> None:
    _, data = fitted(tmp_path)
    expected = evaluated(tmp_path, data)
    frame = pd.read_csv(tmp_path / "own.csv")
    assert evaluated(tmp_path, csv(tmp_path, "swapped.csv", frame[["b", "a"]])) == pytest.approx(expected, abs=1e-5)
    assert evaluated(tmp_path, csv(tmp_path, "more.csv", frame.assign(c=frame.a**2), columns=["b", "a"])) == (
        pytest.approx(expected, abs=1e-5)
    )
    for other in (frame.rename(columns={"a": "x"}), frame.assign(c=frame.a**2)):
        with pytest.raises(ValueError, match=rf"columns \['a', 'b'\] and TabularDataModule has .*{other.columns[-1]}"):
            module = LogConcaveEBM.load_from_checkpoint(tmp_path / "own.ckpt", weights_only=True)
            ModuleContract()._trainer().test(module, datamodule=csv(tmp_path, "other.csv", other))
    with pytest.raises(ValueError, match=r"another order: resume with columns=\['a', 'b'\]"):
        ModuleContract()._trainer(max_steps=40).fit(
            fresh(),
            datamodule=csv(tmp_path, "swapped.csv", frame[["b", "a"]]),
            ckpt_path=tmp_path / "own.ckpt",
            weights_only=True,
        )


def test_rows_that_moved_between_the_splits_are_counted(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    _, data = fitted(tmp_path)
    frame = pd.read_csv(tmp_path / "own.csv")
    rows = {key: data.units.invert(data.split(key)) for key in ("train", "test")}
    evaluated(tmp_path, data)
    evaluated(tmp_path, csv(tmp_path, "swapped.csv", frame[["b", "a"]]))
    assert not [w for w in recwarn if "trained on" in str(w.message)]
    longer = csv(tmp_path, "longer.csv", pd.concat([frame, pd.DataFrame({"a": [1.0], "b": [2.0]})]))
    longer.setup()
    moved = longer.units.invert(longer.split("test"))
    nearest = torch.cdist(moved, rows["train"]).min(dim=1).values
    count = int((nearest < 1e-4).sum())
    assert count > 10
    match = rf"{count} of the 30 rows of the test split are among the 240 rows .* trained on \(0 at its fit\)"
    with pytest.warns(UserWarning, match=match):
        evaluated(tmp_path, longer)


def test_resuming_on_changed_rows_in_the_same_units_warns(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).gamma(3.0, size=(60, 2)), columns=["a", "b"])
    trainer = ModuleContract()._trainer(max_steps=1)
    trainer.fit(fresh(), datamodule=csv(tmp_path, "own.csv", frame, standardize=False))
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    frame.loc[:, "a"] += 1.0
    other = csv(tmp_path, "own.csv", frame, standardize=False)
    with pytest.warns(UserWarning, match=r"48 of the 48 training rows are not those of the checkpoint"):
        ModuleContract()._trainer(max_steps=2).fit(
            fresh(), datamodule=other, ckpt_path=tmp_path / "own.ckpt", weights_only=True
        )


@pytest.mark.parametrize("mean", [1e6, 1e9])
def test_a_large_mean_over_a_small_spread_keeps_its_digits(tmp_path: Path, mean: float) -> None:
    """Against the same rows without the mean: rows written, their densities, draws and the frozen density."""
    rows = np.random.default_rng(0).normal(size=(300, 2)).round(4)  # exact beside 1e9 in float64
    results, moments = [], []
    for shift in (0.0, mean):
        torch.manual_seed(0)
        data = csv(tmp_path, "own.csv", pd.DataFrame(rows + shift, columns=["a", "b"]))
        module = LogConcaveEBM(2, functools.partial(ICNN, widths=[8, 8]), DirectSoftplus, learning_rate=1e-2)
        trainer = ModuleContract()._trainer(max_steps=20, callbacks=[PredictionWriter(str(tmp_path / f"{shift}.csv"))])
        trainer.fit(module, datamodule=data)
        trainer.predict(module, datamodule=data)
        written = pd.read_csv(tmp_path / f"{shift}.csv")
        frozen = module.freeze()
        points = data.units.invert(data.split("test").double())
        table = torch.tensor(written[["a", "b"]].to_numpy()) - shift
        draws = frozen.sample(200, seed=1).double() - shift
        results.append((table, torch.tensor(written["log_density"]), frozen.log_prob(points)))
        moments.append(torch.stack([draws.mean(0), draws.std(0)]))
    for plain, shifted in zip(*results, strict=True):
        torch.testing.assert_close(shifted.double(), plain.double(), rtol=1e-4, atol=1e-4)
    # rounding in the fit may turn one accepted step of the sampler into a refused one
    torch.testing.assert_close(moments[1], moments[0], rtol=0, atol=0.02)
    assert float(moments[1][1].min()) > 0.5


def test_float32_units_of_an_old_checkpoint_load_and_agree_with_their_table(tmp_path: Path) -> None:
    module, data = fitted(tmp_path)
    state = module.get_extra_state()
    old = {name: state[name].float() for name in ("location", "scale", "support")} | {"has_units": True}
    module.set_extra_state(old)
    trainer = ModuleContract()._trainer()
    trainer.datamodule = data
    module._trainer = trainer
    rows = data.split("test")
    assert module.own_units(rows) is rows
    assert module.log_scale == pytest.approx(data.log_scale, rel=1e-6)


def test_a_device_without_float64_gets_float32_units_and_a_warning_where_digits_are_lost(tmp_path: Path) -> None:
    def to_float32_device(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")  # what .to("mps") says
        return tensor

    module, _ = fitted(tmp_path)
    assert module.freeze()._apply(to_float32_device).location.dtype == torch.float32
    module.location = module.location + 2e4 * module.units.spread
    with pytest.warns(UserWarning, match=r"mean 2e\+04 times its standard deviation, and this device has no float64"):
        frozen = module.freeze()._apply(to_float32_device)
    assert torch.isfinite(frozen.sample(10)).all()
