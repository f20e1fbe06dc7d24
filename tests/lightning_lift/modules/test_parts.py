"""Tasks on batches with parts: what a target, a context and their units meet in the base classes."""

import functools
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_lift.datamodules import Batch, Units
from lightning_lift.modules import ConvexModule
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Lift
from lightning_lift.potential import Potential


class Pairs(ConvexModule):
    """The smallest regression."""

    batch_fields = ("x", "target")

    def loss(self, potential: Potential, batch: Batch) -> Tensor:
        assert batch.target is not None
        return (potential.value(batch.x) - batch.target).square().mean()


class Shifted(ICNN):
    """A network of two inputs and a context of shape (3, 2): E(x; u) = E(x) + sum u."""

    context_shape = (3, 2)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        assert context is not None
        return super().forward(x) + context.sum((1, 2))


class Conditional(Pairs):
    batch_fields = ("x", "context", "target")


def quiet(**settings: object) -> L.Trainer:
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return L.Trainer(accelerator="cpu", **(silent | {"max_epochs": 2, "num_sanity_val_steps": 0} | settings))


def rows(count: int = 50) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(1))
    return x, x.square().sum(1)


def test_lightnings_own_collation_trains_tests_and_predicts_with_unequal_batches():
    data = TensorDataset(*rows())
    module, trainer = Pairs(2, network=functools.partial(ICNN, widths=(8,))), quiet()
    trainer.fit(module, DataLoader(data, 16, shuffle=True), DataLoader(data, 16))
    found = trainer.test(module, DataLoader(data, 16), verbose=False)[0]["test/loss"]
    x, y = rows()
    assert found == pytest.approx(module.batch_loss([x, y]).item(), rel=1e-6)
    whole = trainer.predict(module, DataLoader(TensorDataset(x), 16))
    torch.testing.assert_close(torch.cat(whole), module.potential().value(x))
    torch.testing.assert_close(torch.cat(trainer.predict(module, DataLoader(data, 16))), torch.cat(whole))


def test_a_lift_sees_inputs_and_context_and_never_the_target():
    module = Conditional(2, network=functools.partial(Shifted, widths=(8,)), parameterization=Lift)
    x, y = rows(5)
    context = torch.randn(5, 3, 2)
    seen: list[Tensor] = []
    module.parameterization.body.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    module.batch_loss([x, context, y])
    assert torch.equal(seen[0], torch.cat([x, context.flatten(1)], dim=1))
    module.parameterization.calibrate([seen[0]])
    module.eval()
    assert torch.equal(module.potential(Batch(x, context)).value(x), module.potential().at(context).value(x))


def test_a_lift_is_calibrated_from_batches_with_parts():
    class Calibrated(Pairs):
        def calibration_dataloader(self) -> DataLoader:
            return DataLoader(TensorDataset(*rows()), 20)

    module = Calibrated(2, network=functools.partial(ICNN, widths=(8,)), parameterization=Lift)
    quiet().fit(module, DataLoader(TensorDataset(*rows()), 16), DataLoader(TensorDataset(*rows()), 16))
    body = module.parameterization.body
    torch.testing.assert_close(module.parameterization.reference_summary, body(rows()[0]).mean(0))


def test_a_loader_of_pairs_names_the_way_out_where_the_task_takes_rows():
    class Rows(ConvexModule):
        def loss(self, potential: Potential, batch: Tensor) -> Tensor:
            return potential.value(batch).mean()

    with pytest.raises(ValueError, match=r"batch of 2 parts does not fit: the task takes .x.*batch_fields"):
        quiet().fit(Rows(2), DataLoader(TensorDataset(*rows()), 16))


def test_each_part_is_brought_into_the_units_of_the_fit():
    def table(location: float, scale: float) -> SimpleNamespace:
        units = Units(torch.tensor([location], dtype=torch.float64), torch.tensor([scale], dtype=torch.float64))
        return SimpleNamespace(location=torch.zeros(2), scale=torch.ones(2), field_units={"target": units})

    module = Pairs(2)
    module.adopt_units(table(1.0, 2.0))
    restored = Pairs(2)
    restored.load_state_dict(module.state_dict())
    restored._trainer = SimpleNamespace(datamodule=table(5.0, 4.0), predicting=False)
    x, original = rows()
    theirs = Batch(x, target=(original - 5.0) / 4.0)
    torch.testing.assert_close(restored.own_units(theirs).target, (original - 1.0) / 2.0)


@pytest.mark.parametrize(
    ("context", "match"),
    [
        (None, r"Shifted needs a context of shape \(N, 3, 2\)"),
        (torch.zeros(5, 3), r"context of shape \(5, 3\) does not fit: Shifted takes \(N, 3, 2\)"),
        (torch.zeros(4, 3, 2), "context of 4 entries does not fit 5 points"),
    ],
)
def test_a_context_that_does_not_fit_is_refused(context, match):
    network = Shifted(2, (4,))
    potential = Potential(network, {n: p for n, p in network.named_parameters() if n in network.nonnegative_names()})
    with pytest.raises(ValueError, match=match):
        potential.at(context).value(torch.zeros(5, 2))


def test_a_context_for_a_network_that_takes_none_is_refused():
    network = ICNN(2, (4,))
    weights = {n: p for n, p in network.named_parameters() if n in network.nonnegative_names()}
    with pytest.raises(ValueError, match=r"ICNN takes no context, and one of shape \(5, 1\) is given"):
        Potential(network, weights, torch.zeros(5, 1))
