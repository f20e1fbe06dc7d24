import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint

from lightning_lift.callbacks import RunSummary
from lightning_lift.datamodules import GumbelDataModule, TabularDataModule
from lightning_lift.metrics import best_gaussian
from lightning_lift.modules import ConvexPotentialFlow, LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.testing import ModuleContract

SMALL = functools.partial(ICNN, widths=[16, 16])


class Seen(L.Callback):
    def __init__(self) -> None:
        self.nll: list[float] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.nll.append(float(trainer.callback_metrics["val/nll"]))


def fitted(
    data: Any, steps: int = 60, callbacks: tuple[Any, ...] = (), **more: Any
) -> tuple[ConvexPotentialFlow, L.Trainer, Seen]:
    torch.manual_seed(0)
    module, seen = ConvexPotentialFlow(data.dim, SMALL, inverse_rows=0), Seen()
    settings = {"max_steps": steps, "num_sanity_val_steps": 0, "callbacks": [seen, *callbacks], **more}
    trainer = ModuleContract()._trainer(**settings)
    trainer.fit(module, datamodule=data)
    return module, trainer, seen


def test_a_table_ends_with_the_weights_of_the_best_validation() -> None:
    data = TabularDataModule(table="load_wine")
    module, trainer, seen = fitted(data)
    assert min(seen.nll) < seen.nll[-1] - 0.1, "it did overfit"
    found = trainer.validate(module, datamodule=data, verbose=False)[0]["val/nll"]
    assert found == pytest.approx(min(seen.nll), rel=1e-6)


def test_a_resumed_fit_knows_the_best_of_before(tmp_path: Path) -> None:
    """From a file of the middle, past the best: its weights are the ones that the whole fit ends with."""
    keep = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=50, save_top_k=-1, filename="{step}")
    data = TabularDataModule(table="load_wine")
    whole, _, seen = fitted(data, callbacks=(keep,), enable_checkpointing=True)
    assert seen.nll.index(min(seen.nll)) < 45, "the best is before the file"
    again = ConvexPotentialFlow(data.dim, SMALL, inverse_rows=0)
    trainer = ModuleContract()._trainer(max_steps=60, num_sanity_val_steps=0)
    trainer.fit(again, datamodule=data, ckpt_path=tmp_path / "step=50.ckpt", weights_only=True)
    for name, tensor in whole.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, again.state_dict()[name]), name


def test_the_summary_says_which_weights_are_tested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    data = TabularDataModule(table="load_wine")
    module, trainer, seen = fitted(data, callbacks=(RunSummary(),))
    trainer.test(module, datamodule=data, verbose=False)
    assert f"best validation (step {seen.nll.index(min(seen.nll)) + 1})" in capsys.readouterr().out
    ModuleContract()._trainer(callbacks=[RunSummary()]).test(module, datamodule=data, verbose=False)
    assert "those that the module came with" in capsys.readouterr().out


def test_a_table_that_gets_no_better_stops() -> None:
    _, trainer, seen = fitted(TabularDataModule(table="load_iris"), steps=3000)
    best = seen.nll.index(min(seen.nll)) + 1
    assert trainer.global_step == best + max(300, 3 * best) + 1


@pytest.mark.parametrize("callback", [EarlyStopping("val/nll", patience=1000), EMAWeightAveraging(decay=0.5)])
def test_a_user_who_chooses_the_weights_keeps_them(callback: Any) -> None:
    data = TabularDataModule(table="load_wine")
    module, trainer, seen = fitted(data, callbacks=(callback,))
    found = trainer.validate(module, datamodule=data, verbose=False)[0]["val/nll"]
    assert found == pytest.approx(seen.nll[-1], rel=1e-4)
    assert found > min(seen.nll) + 0.1


def test_fresh_rows_end_with_the_last_weights() -> None:
    data = GumbelDataModule(batch_size=8, batches_per_epoch=5, num_val=16, num_test=16)
    module, trainer, seen = fitted(data, steps=20)
    found = trainer.validate(module, datamodule=data, verbose=False)[0]["val/nll"]
    assert found == pytest.approx(seen.nll[-1], rel=1e-6)
    assert "test/gaussian_nll" not in trainer.test(module, datamodule=data, verbose=False)[0]


@pytest.mark.parametrize("standardize", ["whiten", "columns", False])
def test_the_gaussian_of_the_same_rows_stands_beside_a_table(standardize: Any) -> None:
    """Against densities in original units, row by row."""
    columns = ["alcohol", "hue", "ash"]
    data = TabularDataModule(table="load_wine", columns=columns, standardize=standardize, batch_size=64)
    module, trainer, _ = fitted(data, steps=5)
    found = trainer.test(module, datamodule=data, verbose=False)[0]
    gaussian = best_gaussian(data.split("train"), data.split("val"))
    assert gaussian is not None
    test = data.split("test").double()
    theirs = data.log_scale - gaussian.log_prob(test)
    ours = -module.log_prob(data.units.invert(test)).detach().double()
    assert found["test/gaussian_nll"] + data.log_scale == pytest.approx(float(theirs.mean()), abs=1e-4)
    difference = ours - theirs
    assert found["test/nll_minus_gaussian"] == pytest.approx(float(difference.mean()), abs=1e-4)
    error = float(difference.std() / len(difference) ** 0.5)
    assert found["test/nll_minus_gaussian_standard_error"] == pytest.approx(error, rel=1e-3)
    assert found["test/nll"] - found["test/gaussian_nll"] == pytest.approx(found["test/nll_minus_gaussian"], abs=1e-4)


def test_few_rows_take_the_shrunken_covariance_and_singular_ones_do_not_fail() -> None:
    torch.manual_seed(0)
    rows = torch.randn(40, 12, dtype=torch.float64)
    likelihood = torch.distributions.MultivariateNormal(rows[:14].mean(0), torch.cov(rows[:14].T, correction=0))
    shrunken = best_gaussian(rows[:14], rows[14:])
    assert shrunken is not None
    assert shrunken.log_prob(rows[14:]).mean() > likelihood.log_prob(rows[14:]).mean() + 1.0
    twice = torch.cat([rows[:, :2], rows[:, :1]], dim=1)
    assert best_gaussian(twice[:30], twice[30:]) is not None
    assert LogConcaveEBM(1).test_gaussian_nll is not None
