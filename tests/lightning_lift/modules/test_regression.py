import functools
import math

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_lift.datamodules import Batch, Units
from lightning_lift.modules import ConvexModule, ConvexRegression
from lightning_lift.modules.regression_function import row_losses
from lightning_lift.networks import ICNN, PICNN, ConvexNetwork

small = functools.partial(ICNN, widths=(16, 16))


def fitted(x: Tensor, y: Tensor, *weight: Tensor, steps: int = 400, **settings: object) -> ConvexRegression:
    L.seed_everything(0, verbose=False)
    module = ConvexRegression(x.shape[1], **({"network": small} | settings))
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(accelerator="cpu", max_steps=steps, **silent)
    trainer.fit(module, DataLoader(TensorDataset(x, y, *weight), len(x) // 2, shuffle=True))
    return module.eval()


def normal(count: int, dim: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("loss", "best"),
    [("squared", 2.0), ("absolute", 1.0), ("quantile", 5.0), ("poisson", math.log(2.0)), ("logistic", math.log(0.25))],
)
def test_each_loss_is_least_at_what_it_predicts(loss: str, best: float) -> None:
    target = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]) if loss == "logistic" else torch.tensor([0.0, 0.0, 1.0, 4.0, 5.0])
    grid = torch.linspace(-4.0, 6.0, 10_001)
    losses = [row_losses(loss, target.new_full((5,), float(link)), target, 0.9).sum() for link in grid]
    assert float(grid[torch.stack(losses).argmin()]) == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("concave", [False, True])
def test_the_mean_is_found_and_keeps_its_shape(concave: bool) -> None:
    sign = -1.0 if concave else 1.0
    x = normal(400, 2)
    y = sign * (x[:, 0].square() + x[:, 1].exp())
    named = {"decreasing" if concave else "increasing": ["b"], "columns": ["a", "b"]}
    function = fitted(x, y, concave=concave, **named).function()
    assert (function.mean(x) - y).square().mean() < 0.01 * y.var()
    a, b = 3.0 * normal(100_000, 2, seed=1), 3.0 * normal(100_000, 2, seed=2)
    share = torch.rand(100_000, 1, generator=torch.Generator().manual_seed(3))
    ends, middle = [function.mean(point) for point in (a, b)], function.mean(share * a + (1 - share) * b)
    chord = share[:, 0] * ends[0] + (1 - share[:, 0]) * ends[1]
    spread = float(torch.cat(ends).detach().max() - torch.cat(ends).detach().min())
    assert float((sign * (middle - chord)).detach().max()) <= 1e-5 * spread
    assert float((sign * function.gradient(a)[:, 1]).min()) >= 0.0


def test_a_rate_a_probability_and_a_quantile_are_recovered() -> None:
    x = normal(2000, seed=5)
    draws = torch.Generator().manual_seed(6)
    truth = {
        "poisson": (0.3 * x[:, 0].square()).exp(),
        "logistic": (x[:, 0].square() - 1.0).sigmoid(),
        "quantile": x[:, 0].abs() + 1.2816,
    }
    targets = {
        "poisson": torch.poisson(truth["poisson"], generator=draws),
        "logistic": torch.bernoulli(truth["logistic"], generator=draws),
        "quantile": x[:, 0].abs() + torch.randn(2000, generator=draws),
    }
    inside = x[:, 0].abs() < 1.5
    for loss, target in targets.items():
        function = fitted(x, target, loss=loss, quantile=0.9, steps=800 if loss == "poisson" else 200).function()
        error = (function.mean(x) - truth[loss])[inside].abs().mean()
        assert error < 0.1 * truth[loss][inside].mean(), loss


def test_slopes_are_those_of_the_prediction_in_original_units() -> None:
    for loss in ("squared", "poisson", "logistic"):
        module = ConvexRegression(2, loss=loss, network=small).double().eval()
        module.location, module.scale = torch.tensor([5.0, -1.0]).double(), torch.tensor([2.0, 0.5]).double()
        module.field_units = {"target": Units(torch.tensor([3.0]).double(), torch.tensor([7.0]).double())}
        x = (module.location + 0.1 * normal(5, 2).double()).requires_grad_()
        for function in (module.function(), module.freeze().function()):
            (expected,) = torch.autograd.grad(function.mean(x).sum(), x)
            torch.testing.assert_close(function.gradient(x), expected)


def test_units_of_inputs_and_target_are_undone() -> None:
    module = ConvexRegression(1, network=small).eval()
    module.location, module.scale = torch.tensor([100.0]).double(), torch.tensor([10.0]).double()
    module.field_units = {"target": Units(torch.tensor([3.0]).double(), torch.tensor([7.0]).double())}
    scaled = normal(6)
    expected = 3.0 + 7.0 * module.potential().value(scaled)
    torch.testing.assert_close(module.function().mean(100.0 + 10.0 * scaled.double()), expected)
    torch.testing.assert_close(module.freeze()(100.0 + 10.0 * scaled.double()), expected)
    prediction = module.predict_step([scaled], 0)
    torch.testing.assert_close(prediction, torch.stack([expected, expected], dim=1))


def test_counts_are_counts_whatever_the_units_of_the_target() -> None:
    module = ConvexRegression(1, loss="poisson", network=small)
    x, counts = normal(6), torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 3.0])
    expected = module.batch_loss([x, counts])
    module.field_units = {"target": Units(torch.tensor([2.0]).double(), torch.tensor([4.0]).double())}
    torch.testing.assert_close(module.batch_loss([x, (counts - 2.0) / 4.0]), expected)


def test_a_row_of_weight_two_is_the_row_twice() -> None:
    module = ConvexRegression(1, network=small)
    x, y = normal(4), normal(4, seed=1)[:, 0]
    twice = module.batch_loss([torch.cat([x, x[:1]]), torch.cat([y, y[:1]])])
    weighted = module.batch_loss(Batch(x, target=y, weight=torch.tensor([2.0, 1.0, 1.0, 1.0]) * 4.0 / 5.0))
    torch.testing.assert_close(weighted, twice)


def test_test_figures_are_in_original_units() -> None:
    module = ConvexRegression(1, loss="quantile", quantile=0.3, network=small).eval()
    units = Units(torch.tensor([1.0]).double(), torch.tensor([5.0]).double())
    module.field_units = {"target": units}
    x, y = normal(50), normal(50, seed=1)[:, 0]
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    found = L.Trainer(accelerator="cpu", **silent).test(module, DataLoader(TensorDataset(x, y), 20), verbose=False)[0]
    mean, target = module.function().mean(x), 1.0 + 5.0 * y
    residual = target - mean
    assert found["test/mse"] == pytest.approx(float(residual.square().mean()), rel=1e-5)
    assert found["test/mae"] == pytest.approx(float(residual.abs().mean()), rel=1e-5)
    r2 = 1.0 - float(residual.square().sum() / (target - target.mean()).square().sum())
    assert found["test/r2"] == pytest.approx(r2, rel=1e-4)
    pinball = torch.where(residual > 0, 0.3 * residual, -0.7 * residual).mean()
    assert found["test/pinball"] == pytest.approx(float(pinball), rel=1e-5)
    assert found["test/share_below"] == pytest.approx(float((residual < 0).float().mean()))


def test_a_context_is_given_in_original_units_and_the_frozen_module_is_convex_in_x_alone() -> None:
    network = functools.partial(PICNN, widths=(8, 8), context_width=8)
    module = ConvexRegression(1, context_shape=[2], network=network, increasing=[0]).eval()
    units = Units(torch.tensor([50.0, -2.0]).double(), torch.tensor([10.0, 0.1]).double())
    module.field_units = {"context": units}
    x, context = normal(6), normal(6, 2, seed=1)
    expected = module.potential(Batch(x, context)).value(x)
    original = units.invert(context)
    torch.testing.assert_close(module.freeze()(x, original), expected)
    torch.testing.assert_close(module.predict_step([x, context], 0)[:, 0], expected)
    assert (module.function().gradient(x, original) >= 0.0).all()


def test_a_far_row_of_counts_has_a_bounded_slope() -> None:
    link = torch.tensor([0.3, 2.0, 60.0], requires_grad=True)
    row_losses("poisson", link, torch.tensor([1.0, 4.0, 2.0])).sum().backward()
    assert link.grad is not None
    torch.testing.assert_close(link.grad, torch.tensor([math.exp(0.3) - 1.0, math.exp(2.0) - 4.0, 40.0 - 2.0]))


def test_raw_units_of_a_plain_loader_bring_a_warning() -> None:
    x = normal(40)
    with pytest.warns(UserWarning, match=r"serves x \(mean .* and target \(mean .*PairsDataModule"):
        fitted(3000.0 + x, 1e5 * x[:, 0].square(), steps=1)


class Own(ConvexNetwork):
    """A user's network without options."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.slope = dim, torch.nn.Parameter(torch.ones(dim))

    def nonnegative_names(self) -> tuple[str, ...]:
        return ("slope",)

    def forward(self, x: Tensor) -> Tensor:
        return x.abs() @ self.slope


def test_a_network_of_ones_own_is_taken_and_refused_where_it_cannot_be_monotone() -> None:
    assert ConvexRegression(2, network=Own).batch_loss([normal(3, 2), normal(3)[:, 0]]) > 0
    with pytest.raises(ValueError, match=r"the network Own has no decreasing and no increasing"):
        ConvexRegression(2, network=Own, increasing=[0])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"loss": "cubic"}, "loss='cubic' is not known; choose 'squared'"),
        ({"quantile": 1.0}, "quantile=1.0: give a number between 0 and 1"),
        ({"increasing": ["price"]}, "'price' is no input that is known by name; set columns, or give positions"),
        ({"increasing": ["price"], "columns": ["a", "b"]}, r"'price' is no input.*the inputs are \['a', 'b'\]"),
        ({"increasing": [5]}, "name positions of the 2 inputs"),
        ({"increasing": "a", "columns": ["a", "b"]}, r"'a': give a list of inputs, \[a\]"),
        ({"context_shape": (3,)}, "the network ICNN has no context_shape.*PICNN for a context"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ConvexRegression(2, **settings)


@pytest.mark.parametrize(
    ("loss", "target", "match"),
    [
        ("squared", torch.zeros(3, 2), r"target of the batch has shape \(3, 2\): one number a row"),
        ("poisson", torch.tensor([0.0, -1.0, 2.0]), "loss='poisson' needs counts, 0 or more.*from -1 to 2"),
        ("logistic", torch.tensor([1.0, 2.0, 1.0]), "loss='logistic' needs a target of 0 or 1.*from 1 to 2"),
    ],
)
def test_targets_that_make_no_sense_are_refused(loss: str, target: Tensor, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ConvexRegression(1, loss=loss).batch_loss([normal(3), target])


def test_is_a_convex_module_whose_checkpoint_keeps_loss_and_shape(tmp_path) -> None:
    module = fitted(normal(40, 2), normal(40)[:, 0], steps=2, concave=True, increasing=[1], loss="absolute")
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(accelerator="cpu", max_steps=3, **silent)
    trainer.fit(module, DataLoader(TensorDataset(normal(40, 2), normal(40)[:, 0]), 20))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = ConvexRegression.load_from_checkpoint(tmp_path / "model.ckpt").eval()
    assert isinstance(again, ConvexModule)
    assert torch.equal(again.function().mean(normal(9, 2)), module.eval().function().mean(normal(9, 2)))
