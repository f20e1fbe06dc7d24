"""Tasks on batches with parts: what a target, a context and their units meet in the base classes."""

import functools
from types import SimpleNamespace

import lightning as L
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lightning_lift.datamodules import Batch, PairsDataModule, Units
from lightning_lift.modules import ConvexModule
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Lift
from lightning_lift.potential import Potential
from lightning_lift.testing import ModuleContract


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


def triples(count: int = 60, **settings: object) -> PairsDataModule:
    generator = torch.Generator().manual_seed(1)
    x, context = torch.randn(count, 2, generator=generator), torch.randn(count, 3, 2, generator=generator)
    return PairsDataModule.from_arrays(x, context, x.square().sum(1) + context.sum((1, 2)), batch_size=16, **settings)


class TestConditional(ModuleContract):
    """A target, a context of two dimensions, a lift and unequal last batches."""

    def make(self) -> Conditional:
        return Conditional(2, network=functools.partial(Shifted, widths=(8,)), parameterization=Lift)

    def make_data(self) -> PairsDataModule:
        return triples(eval_batch_size=4)


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


def bare(order: object = None, **settings: object) -> DataLoader:
    return DataLoader(TensorDataset(*rows()), sampler=order, **({"batch_size": 16} | settings))  # type: ignore[arg-type]


def lifted() -> Pairs:
    torch.manual_seed(0)
    return Pairs(2, network=functools.partial(ICNN, widths=(8,)), parameterization=Lift)


@pytest.mark.parametrize(
    "loader",
    [
        lambda: bare(shuffle=True, generator=torch.Generator().manual_seed(1), drop_last=True),
        lambda: DataLoader(
            TensorDataset(*rows()), batch_size=None, sampler=BatchSampler(SequentialSampler(range(50)), 16, False)
        ),
    ],
)
def test_a_lift_on_a_bare_loader_is_calibrated_on_all_of_its_rows(loader):
    class NeverRead(Pairs):
        def calibration_dataloader(self) -> DataLoader:
            return DataLoader(TensorDataset(*rows()), 50)

    weights = []
    for kind in (Pairs, NeverRead):  # the pass over the loader's rows takes no random number from training
        torch.manual_seed(0)
        module = kind(2, network=functools.partial(ICNN, widths=(8,)), parameterization=Lift)
        quiet().fit(module, loader(), bare())
        lift = module.parameterization
        torch.testing.assert_close(lift.reference_summary, lift.body(rows()[0]).mean(0))
        weights.append([parameter.detach().clone() for parameter in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("order", [SubsetRandomSampler(range(30)), WeightedRandomSampler(torch.ones(50), 50)])
def test_a_lift_is_not_calibrated_on_rows_that_training_may_not_see(order):
    with pytest.raises(RuntimeError, match=r"no rows for it: .* call module\.calibrate\(batches\)"):
        quiet().fit(lifted(), bare(order), bare())


def test_calibrate_takes_batches_as_a_loader_gives_them():
    module = lifted()
    module.calibrate(bare())
    torch.testing.assert_close(
        module.parameterization.reference_summary, module.parameterization.body(rows()[0]).mean(0)
    )


def test_a_loader_of_pairs_names_the_way_out_where_the_task_takes_rows():
    class Rows(ConvexModule):
        def loss(self, potential: Potential, batch: Tensor) -> Tensor:
            return potential.value(batch).mean()

    with pytest.raises(ValueError, match=r"batch of 2 parts does not fit: the task takes .x.*batch_fields"):
        quiet().fit(Rows(2), DataLoader(TensorDataset(*rows()), 16))


def fields(context: list[str], swap: bool = False, **settings: object) -> PairsDataModule:
    """One table of a context of two columns, in one order or the other, under two units."""
    x, y = rows(60)
    numbers = torch.cat([x * 3 + 7, y[:, None]], dim=1).double()
    frame = pd.DataFrame(numbers.numpy(), columns=["price", "day", "sold"])
    frame["rain"] = frame["day"] * frame["price"]
    arrays = PairsDataModule.from_arrays(frame[["price"]], frame[context], frame["sold"], batch_size=8, **settings)
    arrays.setup()
    return arrays


def test_context_and_target_of_another_table_are_brought_into_columns_and_units_of_the_fit():
    fitted, other = fields(["day", "rain"]), fields(["rain", "day"], standardize=["x"])
    module = Conditional(1)
    module.adopt_units(fitted)
    restored = Conditional(1)
    restored.load_state_dict(module.state_dict())
    restored._trainer = SimpleNamespace(datamodule=other, predicting=False)
    torch.testing.assert_close(restored.own_units(other.split("val")), fitted.split("val"), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"columns \['day', 'rain'\] .* has \['rain', 'day'\]|other units"):
        restored.on_train_start()
    restored._trainer = SimpleNamespace(datamodule=fields(["sold", "rain"]), predicting=False)
    with pytest.raises(ValueError, match=r"columns \['day', 'rain'\] and .*: name the model's columns by context="):
        restored.own_units(other.split("val"))


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
