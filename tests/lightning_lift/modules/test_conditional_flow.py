import functools
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_lift.datamodules import Batch, Units
from lightning_lift.datamodules.simulators import LinearGaussianDataModule
from lightning_lift.modules import ConditionalConvexFlow, original_units
from lightning_lift.networks import ICNN, PICNN
from lightning_lift.parameterizations import DirectGain, Lift, ProjectedGradient
from lightning_lift.testing import ModuleContract

SMALL = functools.partial(PICNN, widths=(8, 6), context_width=5)


def quiet(**settings: Any) -> L.Trainer:
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return L.Trainer(accelerator="cpu", **(silent | {"max_steps": 5, "num_sanity_val_steps": 0} | settings))


def linear_gaussian(**settings: Any) -> LinearGaussianDataModule:
    return LinearGaussianDataModule(dim=2, num_simulations=300, num_test=40, batch_size=64, **settings)


def off_its_start(num_blocks: int = 2) -> ConditionalConvexFlow:
    """A model in float64, in units of its own, that depends on its context in every way that it can."""
    torch.manual_seed(0)
    model = ConditionalConvexFlow(2, (3,), SMALL, num_blocks=num_blocks).double()
    x, u = torch.randn(2, 60, 3).double().unbind(0)
    model.start_actnorms(Batch(x[:, :2] + u[:, :2], u))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "conditioner" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.location, model.scale = torch.tensor([3.0, -1.0]).double(), torch.tensor([0.5, 2.0]).double()
    model.field_units["context"] = Units(torch.ones(3).double(), torch.tensor([1.0, 2.0, 3.0]).double())
    return model.eval()


class TestContract(ModuleContract):
    def make(self) -> ConditionalConvexFlow:
        return ConditionalConvexFlow(2, (2,), SMALL, num_blocks=2)

    def make_data(self) -> LinearGaussianDataModule:
        return linear_gaussian()

    def test_freeze_gives_a_plain_module_of_the_same_density_in_original_units(self) -> None:
        module, data = self._fitted_once()
        rows = data.simulations(20, torch.Generator().manual_seed(3))
        frozen = module.freeze()
        assert not list(frozen.parameters())
        torch.testing.assert_close(frozen(rows.x, rows.context), module.log_prob(rows.x, rows.context))
        torch.testing.assert_close(frozen.sample(4, rows.context, seed=1), module.sample(4, rows.context, seed=1))
        example = (rows.x.float(), rows.context.float())
        torch.testing.assert_close(torch.export.export(frozen, example).module()(*example), frozen(*example))


class TestContractOfALift(TestContract):
    def make(self) -> ConditionalConvexFlow:
        return ConditionalConvexFlow(2, (2,), SMALL, Lift)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_it_is_the_change_of_variables_that_it_says_in_original_units(num_blocks: int) -> None:
    model = off_its_start(num_blocks)
    x, u = torch.randn(2, 12, 3).double().unbind(0)
    x = model.to_original(x[:, :2])
    jacobian = torch.autograd.functional.jacobian(lambda rows: model.map(rows, u).sum(0), x).transpose(0, 1)
    noise = model.map(x, u)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum(1) + torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(model.log_prob(x, u), expected, rtol=1e-9, atol=1e-9)
    found = model.inverse_map(noise, u)
    assert found.converged.all()
    torch.testing.assert_close(found.x, x, rtol=1e-9, atol=1e-9)
    one = model.log_prob(x, u[:1])
    torch.testing.assert_close(one, model.log_prob(x, u[:1].expand(12, 3)))
    torch.testing.assert_close(model.row_log_prob(model.to_batch(x, u)) - model.log_scale, model.log_prob(x, u))


def test_its_draws_follow_its_density_at_each_context() -> None:
    model = off_its_start()
    u = torch.randn(3, 3).double()
    draws = model.sample(1000, u, seed=1)
    assert draws.shape == (1000, 3, 2)
    for index in range(3):  # the integral of p over an ellipse against the share of draws in it
        rows = draws[:, index]
        mean, half = rows.mean(0), 2.5 * rows.std(0)
        grid = torch.cartesian_prod(*(torch.linspace(-1.0, 1.0, 201).double() for _ in range(2)))
        inside = grid.square().sum(1) < 0.5
        density = model.log_prob(mean + half * grid, u[index : index + 1]).exp()
        share = float(density[inside].sum() * half.prod() * 0.01**2)
        found = float((((rows - mean) / half).square().sum(1) < 0.5).double().mean())
        assert abs(found - share) < 4.0 * (share * (1.0 - share) / 1000) ** 0.5 + 2e-3
    alone = model.sample(1000, u[1:2], seed=1)
    assert not torch.equal(model.sample(3, u), model.sample(3, u))  # without a seed, from the global state
    torch.testing.assert_close(alone.mean(0), draws[:, 1:2].mean(0), rtol=0.1, atol=0.2)


def test_draws_are_inside_the_support_and_the_density_outside_it_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, u = off_its_start(), torch.randn(2, 3).double()
    everywhere = model.sample(40, u, seed=0)
    middle = model.to_scaled(everywhere.flatten(0, 1)).median(0).values
    model.support = torch.stack([middle - 1.0, middle + 2.0])
    draws = model.sample(40, u, seed=0)
    scaled = model.to_scaled(draws.flatten(0, 1))
    assert ((scaled >= model.support[0]) & (scaled <= model.support[1])).all()
    kept = (draws == everywhere).all(-1)
    assert 0.05 < kept.double().mean() < 0.95
    outside = everywhere[~kept]
    assert torch.isneginf(model.log_prob(outside, u[:1])).all()
    assert torch.isfinite(model.log_prob(draws[:, 0], u[:1])).all()
    torch.testing.assert_close(model.freeze().sample(40, u, seed=0), draws)
    monkeypatch.setattr(original_units, "_REDRAWS", 2)
    model.support = torch.full((2, 2), 1e6) + torch.tensor([[0.0], [1.0]])
    with pytest.raises(RuntimeError, match=r"outside the support 2 times in a row.*leaks"):
        model.sample(2, u)


@pytest.mark.parametrize("parameterization", [ProjectedGradient, DirectGain, Lift])
def test_a_bare_loader_of_pairs_trains_it(parameterization: Any) -> None:
    class Calibrated(ConditionalConvexFlow):
        def calibration_dataloader(self) -> DataLoader[Any]:
            return DataLoader(data, 40)

    torch.manual_seed(0)
    x = torch.randn(70, 2)
    data = TensorDataset(x, torch.stack([x, x.square()], 1))  # a context of shape (2, 2): embedded below
    embedding = functools.partial(nn.Flatten)
    network = functools.partial(PICNN, widths=(6,), embedding=embedding)
    model, trainer = Calibrated(2, (2, 2), network, parameterization), quiet()
    trainer.fit(model, DataLoader(data, 32), DataLoader(data, 32))
    assert trainer.test(model, DataLoader(data, 32), verbose=False)[0]["test/nll"] < 3.3  # N(0, I) has 2.84
    (found,) = trainer.predict(model, DataLoader(data, 70))
    torch.testing.assert_close(found, model.log_prob(*data.tensors), rtol=1e-4, atol=1e-4)


def test_a_network_without_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Plain takes a context of shape None, not \(3,\)"):
        ConditionalConvexFlow(2, (3,), Plain)


class Plain(ICNN):
    def __init__(self, dim: int, context_shape: tuple[int, ...]) -> None:
        super().__init__(dim, (4,))


def test_units_of_a_checkpoint_go_with_it(tmp_path: Any) -> None:
    data = linear_gaussian(data_seed=1)
    model, trainer = ConditionalConvexFlow(2, (2,), SMALL), quiet()
    trainer.fit(model, data)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = ConditionalConvexFlow.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    other = linear_gaussian(data_seed=2)  # the same table in other units: its rows are brought into ours
    rows = other.simulations(5, torch.Generator().manual_seed(0))
    assert torch.equal(again.log_prob(rows.x, rows.context), model.log_prob(rows.x, rows.context))
    found = torch.cat(quiet().predict(again, datamodule=other))
    other.setup("test")
    test: Batch = other.split("test")
    assert test.context is not None
    original = Batch(other.units.invert(test.x.double()), other.field_units["context"].invert(test.context.double()))
    assert original.context is not None
    torch.testing.assert_close(found, again.log_prob(original.x, original.context), rtol=1e-4, atol=1e-4)


def divergence(model: ConditionalConvexFlow, data: LinearGaussianDataModule, contexts: Tensor) -> Tensor:
    """KL(closed form || model) at each context, by 2,000 draws."""
    found = []
    for context in contexts:
        truth = data.posterior(context)
        draws = truth.sample((2000,))
        found.append((truth.log_prob(draws) - model.log_prob(draws, context[None])).mean())
    return torch.stack(found)


@pytest.mark.slow
def test_a_linear_gaussian_posterior_is_found() -> None:
    L.seed_everything(11)
    data = LinearGaussianDataModule(dim=4, num_simulations=10_000)
    model = ConditionalConvexFlow(4, (4,), functools.partial(PICNN, widths=(32, 32)))
    quiet(max_steps=1500, val_check_interval=35, check_val_every_n_epoch=1).fit(model, data)
    contexts = data.simulations(50, torch.Generator().manual_seed(5)).context
    assert contexts is not None
    assert divergence(model, data, contexts).mean() < 0.02
