"""A user samples and scores in original units, with draws from the random state that is asked for."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_lift.callbacks import FlowFigure, PredictionWriter
from lightning_lift.datamodules import GumbelDataModule, TabularDataModule
from lightning_lift.metrics.functional import total_variation
from lightning_lift.modules import ConvexPotentialFlow, LogConcaveEBM, NormalizingFlow
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus
from lightning_lift.testing import ModuleContract


@pytest.mark.parametrize("kind", ["energy", "flow", "nflows"])
def test_a_user_samples_and_scores_in_original_units(tmp_path: Path, kind: str) -> None:
    """By means and deviations of the table (about 1000 and 0.03), and by integrals in its own units."""
    rows = np.random.default_rng(0).normal([1000.0, -5.0], [0.03, 40.0], size=(400, 2))
    pd.DataFrame(rows, columns=["a", "b"]).to_csv(tmp_path / "t.csv", index=False)
    data = TabularDataModule(path=str(tmp_path / "t.csv"), columns=["a", "b"], batch_size=64)
    torch.manual_seed(0)
    network = functools.partial(ICNN, widths=[8], strong_convexity=0.5, weight_init="folded_normal")
    module = {
        "energy": lambda: LogConcaveEBM(2, network, DirectSoftplus, learning_rate=0.1),
        "flow": lambda: ConvexPotentialFlow(2, network, DirectSoftplus, learning_rate=0.1),
        "nflows": lambda: NormalizingFlow(2, "maf", num_layers=1, hidden_features=8, learning_rate=0.1),
    }[kind]()
    ModuleContract()._trainer(max_steps=60, limit_val_batches=0).fit(module, datamodule=data)
    draws = module.sample(2000)
    spread = torch.tensor([0.03, 40.0])
    assert ((draws.double().mean(0) - torch.tensor([1000.0, -5.0])).abs() < 0.3 * spread).all()
    assert ((draws.double().std(0) / spread - 1.0).abs() < 0.4).all()
    x = draws[:50].detach()
    for model in (module, module.freeze()):
        torch.testing.assert_close(model.log_prob(x), module.log_prob_scaled(module.to_scaled(x)) - data.log_scale)
    if kind != "energy":
        noise = module.map(x).detach()
        assert noise.abs().max() < 7.0
        torch.testing.assert_close(module.inverse_map(noise).x, x, rtol=1e-6, atol=1e-3)
    if kind == "flow":
        torch.testing.assert_close(module.reconstruct(x).x, x, rtol=1e-6, atol=1e-3)
        path = module.interpolate(x[:1], x[1:2], 3)
        torch.testing.assert_close(path[[0, 2], 0], x[:2], rtol=1e-6, atol=1e-3)


def test_draws_differ_from_call_to_call_and_are_had_again() -> None:
    module = LogConcaveEBM(1, functools.partial(ICNN, widths=[8]), DirectSoftplus)
    for model in (module, module.freeze()):
        assert len(torch.cat([model.sample(100) for _ in range(10)]).unique()) == 1000
        torch.manual_seed(3)
        first = model.sample(5)
        torch.manual_seed(3)
        assert torch.equal(model.sample(5), first)
        assert torch.equal(model.sample(5, seed=3), first)
        assert torch.equal(model.sample(5, 3), first)
        generator = torch.Generator().manual_seed(3)
        assert torch.equal(model.sample(5, generator=generator), first)
        assert not torch.equal(model.sample(5, generator=generator), first)
        with pytest.raises(ValueError, match="seed=3 and a generator"):
            model.sample(5, seed=3, generator=generator)


@pytest.mark.parametrize("make", [LogConcaveEBM, ConvexPotentialFlow, NormalizingFlow])
def test_a_frozen_density_in_another_precision(make: Any) -> None:
    frozen = make(1, **({"flow": "maf"} if make is NormalizingFlow else {"parameterization": DirectSoftplus})).freeze()
    x = torch.tensor([[-1.0], [0.5]])
    expected = frozen.log_prob(x).double()
    torch.testing.assert_close(frozen.double().log_prob(x), expected, rtol=1e-5, atol=1e-5)


def test_distance_to_a_truth_stated_in_other_units_than_the_models(tmp_path: Path) -> None:
    module = LogConcaveEBM(1, functools.partial(ICNN, widths=[8]), DirectSoftplus)
    data = GumbelDataModule(batch_size=32, batches_per_epoch=5, num_val=64, num_test=64)
    trainer = ModuleContract()._trainer(max_steps=5)
    trainer.fit(module, datamodule=data)
    other = GumbelDataModule(batch_size=32, batches_per_epoch=5, num_val=64, num_test=64)
    other.set_standardization(torch.tensor([1.0]), torch.tensor([2.0]))
    found = trainer.test(module, datamodule=other, verbose=False)[0]["test/total_variation"]
    z = torch.linspace(*other.window[:, 0].tolist(), 4001, dtype=torch.float64)[:, None]
    model = (module.freeze().log_prob(1.0 + 2.0 * z) + np.log(2.0)).double()
    step = torch.full((4001,), float(z[1] - z[0]), dtype=torch.float64)
    assert found == pytest.approx(float(total_variation(other.log_prob(z), model, step)), abs=2e-4)


def test_draws_of_a_model_beside_a_table_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal([100.0, -5.0], [3.0, 0.4], size=(200, 2))
    frame = pd.DataFrame(rows, columns=["a", "b"])
    frame.to_csv(tmp_path / "own.csv", index=False)
    frame[["b", "a"]].to_csv(tmp_path / "swapped.csv", index=False)
    own, swapped = (TabularDataModule(path=str(tmp_path / name), batch_size=32) for name in ("own.csv", "swapped.csv"))
    module = NormalizingFlow(2, "maf", num_layers=1, hidden_features=8)
    ModuleContract()._trainer(max_steps=2).fit(module, datamodule=own)
    pictures: list = []
    monkeypatch.setattr("lightning_lift.callbacks.flow_figure.draw_flow", pictures.append)
    monkeypatch.setattr("lightning_lift.callbacks.flow_figure._POINTS", 41)
    writer = PredictionWriter(str(tmp_path / "rows.csv"), num_samples=200)
    trainer = ModuleContract()._trainer(callbacks=[writer])
    trainer.predict(module, datamodule=swapped)
    assert pd.read_csv(tmp_path / "rows_samples.csv")["a"].mean() == pytest.approx(100.0, abs=3.0)
    with torch.no_grad():
        FlowFigure(num_samples=200).figure(trainer, module, swapped, "val")
    (picture,) = pictures
    assert picture.columns == ("b", "a")
    for points in (picture.samples, picture.grid.reshape(-1, 2)):
        assert points.mean(0) == pytest.approx([-5.0, 100.0], abs=3.0)
    cells = [axis[1] - axis[0] for axis in picture.axes]
    assert picture.model.sum() * cells[0] * cells[1] == pytest.approx(1.0, abs=0.1)
