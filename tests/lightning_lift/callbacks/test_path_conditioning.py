"""The callback in real runs: when it acts, what it leaves alone, what it logs."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_lift.callbacks import PathConditioning
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.partition import Quadrature
from tests.lightning_lift.callbacks.runs import events, make_trainer, small_data


class Plain(L.LightningModule):
    """A user's module that knows nothing of this package."""

    def __init__(self, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 16), activation(), nn.Linear(16, 8), activation(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)


class Watch(L.Callback):
    """The function on fixed points around each first batch of an epoch; listed around the callback under test."""

    def __init__(self, points: Tensor) -> None:
        self.points, self.seen = points, []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            value = module.potential().value(self.points) if hasattr(module, "potential") else module(self.points)
        weights = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        self.seen.append((trainer.global_step, value, weights))


def loader() -> Iterable[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=10)


def model(parameterization: Any = ProjectedGradient) -> LogConcaveEBM:
    torch.manual_seed(0)
    return LogConcaveEBM(
        1,
        network=partial(
            ICNN, widths=(8, 8), activation="relu", strong_convexity=0.02, weight_init="folded_normal", bias_std=1.0
        ),
        parameterization=parameterization,
        partition=partial(Quadrature, num_points=101, evaluation_points=201),
        optimizer=partial(torch.optim.Adam, lr=1e-2),
    )


def moved(before: Watch, after: Watch) -> list[int]:
    """Steps at which the weights changed between the two watches, where the function must not have."""
    steps = []
    for (step, value, weights), (_, value_after, weights_after) in zip(before.seen, after.seen, strict=True):
        torch.testing.assert_close(value_after, value, rtol=1e-4, atol=1e-5)
        if not torch.equal(weights, weights_after):
            steps.append(step)
    return steps


def fit(module: L.LightningModule, folder: Path, callback: PathConditioning, data: Any, **kwargs: Any) -> list[int]:
    points = torch.randn(30, 3 if isinstance(module, Plain) else 1)
    before, after = Watch(points), Watch(points)
    trainer = make_trainer(folder, [before, callback, after], **{"max_steps": -1, "max_epochs": 5} | kwargs)
    trainer.fit(module, data)
    return moved(before, after)


@pytest.mark.parametrize("method", ["pathcond", "enorm"])
def test_a_plain_module_is_rescaled_once_before_its_first_step(tmp_path: Path, method: Any) -> None:
    callback = PathConditioning(method)
    assert fit(Plain(), tmp_path, callback, loader()) == [0]
    assert callback.report is not None and callback.report.num_units == 24
    seen = events(tmp_path)
    scalars = {tag: seen.Scalars(tag) for tag in seen.Tags()["scalars"] if tag.startswith("rescaling/")}
    names = ["objective_before", "objective_after", "condition_before", "condition_after", "spread_before"]
    names += ["spread_after", "function_change", "units", "sweeps", "seconds"]
    assert set(scalars) == {f"rescaling/{name}" for name in names}
    assert all([point.step for point in points] == [0] for points in scalars.values())
    assert scalars["rescaling/objective_after"][0].value < scalars["rescaling/objective_before"][0].value
    assert "rescaling/log_scales" in seen.Tags()["histograms"]


def test_every_few_epochs_with_momentum_transported(tmp_path: Path) -> None:
    assert fit(Plain(), tmp_path, PathConditioning(every_n_epochs=2), loader()) == [0, 8, 16]


@pytest.mark.parametrize("parameterization", [ProjectedGradient, DirectSoftplus])
def test_a_relu_density_trains_rescaled(tmp_path: Path, parameterization: Any) -> None:
    module = model(parameterization)
    callback = PathConditioning()
    assert fit(module, tmp_path, callback, small_data(), max_epochs=2) == [0]
    assert callback.report is not None and callback.report.num_units == 16
    assert all(bool((w >= 0).all()) for w in module.parameterization.weights().values())


def test_a_lift_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [PathConditioning()])
    with pytest.raises(ValueError, match="parameterization pgd or direct"):
        trainer.fit(model(partial(Lift, body_widths=(8, 8))), datamodule=small_data())


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = Plain()
    assert fit(whole, tmp_path / "a", PathConditioning(), loader(), max_epochs=4) == [0]
    first = Plain()
    trainer = make_trainer(tmp_path / "b", [PathConditioning()], max_steps=-1, max_epochs=2)
    trainer.fit(first, loader())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    torch.load(tmp_path / "half.ckpt", weights_only=True)
    second = Plain()
    callback = PathConditioning()
    trainer = make_trainer(tmp_path / "c", [callback], max_steps=-1, max_epochs=4)
    trainer.fit(second, loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert callback.report is None
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_a_run_begun_without_the_callback_is_rescaled_with_its_momentum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path / "a", max_steps=-1, max_epochs=2)
    trainer.fit(Plain(), loader())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    said: list[str] = []
    monkeypatch.setattr("lightning_lift.callbacks.path_conditioning.rank_zero_info", said.append)
    trainer = make_trainer(tmp_path / "b", [PathConditioning()], max_steps=-1, max_epochs=3)
    trainer.fit(Plain(), loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert "optimizer state: first moments (momentum) divided by the factors" in said[0]


def test_a_smooth_network_is_left_alone_with_a_warning_or_approximated(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no unit that can be rescaled"):
        fit(Plain(nn.SiLU), tmp_path / "a", PathConditioning(), loader(), max_epochs=1)
    callback = PathConditioning(approximate=True)
    make_trainer(tmp_path / "b", [callback], max_steps=1).fit(Plain(nn.SiLU), loader())
    assert callback.report is not None
    assert callback.report.smooth == ("SiLU",)
    assert callback.report.function_change["eval"] > 1e-6


def test_errors_name_the_way_out(tmp_path: Path) -> None:
    for wrong in ({"method": "other"}, {"every_n_epochs": 0}, {"max_sweeps": 0}, {"tolerance": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PathConditioning(**wrong)  # type: ignore[arg-type]
    averaging = EMAWeightAveraging(decay=0.9)
    with pytest.raises(ValueError, match="leave every_n_epochs out"):
        make_trainer(tmp_path, [PathConditioning(every_n_epochs=1), averaging]).fit(Plain(), loader())

    class OfMappings(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self(batch["x"]).mean()

    batches = DataLoader([{"x": row} for row in torch.randn(8, 3)], batch_size=4)
    with pytest.raises(ValueError, match="set example_input_array"):
        make_trainer(tmp_path, [PathConditioning()]).fit(OfMappings(), batches)
    module = OfMappings()
    module.example_input_array = torch.zeros(2, 3)
    make_trainer(tmp_path, [PathConditioning()], max_epochs=1).fit(module, batches)


def test_weight_averaging_from_the_start_is_fine(tmp_path: Path) -> None:
    module = Plain()
    steps = fit(module, tmp_path, PathConditioning(), loader(), max_epochs=1)
    assert steps == [0]
    callbacks = [PathConditioning(), EMAWeightAveraging(decay=0.0)]
    again = Plain()
    make_trainer(tmp_path / "b", callbacks, max_steps=-1, max_epochs=1).fit(again, loader())
    assert all(torch.allclose(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
