import io

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_lift.networks import ICNN, ActNorm


def started() -> tuple[ActNorm, torch.Tensor]:
    torch.manual_seed(0)
    layer = ActNorm(3).double()
    rows = torch.tensor([5.0, 1.0, 1e-3], dtype=torch.float64) * torch.randn(64, 3, dtype=torch.float64) + 2.0
    layer.initialize_(rows)
    return layer, rows


def test_starts_as_the_identity() -> None:
    layer, x = ActNorm(3), torch.randn(4, 3)
    assert torch.equal(layer(x), x)
    assert not layer.initialized


def test_rows_of_the_start_come_out_with_mean_0_and_variance_1() -> None:
    layer, rows = started()
    out = layer(rows)
    torch.testing.assert_close(out.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(out.var(0, correction=0), torch.ones(3, dtype=torch.float64))


def test_starts_once() -> None:
    layer, rows = started()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer.initialize_(10.0 * rows)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_a_constant_feature_keeps_its_scale() -> None:
    layer = ActNorm(3)
    rows = torch.randn(8, 3)
    rows[:, 1], rows[:, 2] = 0.7, 0.0
    layer.initialize_(rows)
    assert layer.log_scale[1:].tolist() == [0.0, 0.0]
    assert layer(rows)[:, 1:].abs().max() < 1e-6


def test_one_row_only_centres() -> None:
    layer = ActNorm(2)
    layer.initialize_(torch.tensor([[3.0, -1.0]]))
    assert layer.log_scale.tolist() == [0.0, 0.0]
    assert layer(torch.tensor([[3.0, -1.0]])).tolist() == [[0.0, 0.0]]


def test_inverse_and_log_determinant() -> None:
    layer, rows = started()
    with torch.no_grad():
        layer.shift.add_(0.3)
    torch.testing.assert_close(layer.normalization.invert(layer(rows)), rows, rtol=1e-12, atol=1e-12)
    jacobian = torch.autograd.functional.jacobian(layer, rows[0])
    torch.testing.assert_close(layer.log_scale.sum(), torch.linalg.slogdet(jacobian).logabsdet)


def test_the_start_survives_saving_and_loading() -> None:
    """A layer that started again from the next batch after a reload would be another function."""
    layer, rows = started()
    saved = io.BytesIO()
    torch.save(layer.state_dict(), saved)
    saved.seek(0)
    again = ActNorm(3).double()
    again.load_state_dict(torch.load(saved, weights_only=True))
    again.initialize_(10.0 * rows)
    assert torch.equal(again(rows), layer(rows))


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_a_step_of_shift_bias_or_scale_is_the_same_in_all_units(unit: float) -> None:
    """Before and inside a network: rows in other units, and about a mean far from 0, give the same gradients."""
    rows = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradients = []
    for factor, mean in ((1.0, 0.0), (unit, 0.0), (1.0, 1e4)):
        torch.manual_seed(0)
        x = factor * rows + mean
        layer, network = ActNorm(2).double(), ICNN(2, (8,), strong_convexity=0.0, actnorm=True, bias_std=1.0).double()
        layer.initialize_(x)
        network.initialize_actnorm_(x, {})
        inside = [*network.layers[0].actnorm.parameters(), network.layers[0].bias]
        own = torch.autograd.grad((layer(x) ** 3).mean(), list(layer.parameters()))
        within = torch.autograd.grad(network(x).mean(), inside)
        gradients.append(torch.cat([*own, *within]))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-6, atol=1e-8)


def test_the_form_of_version_0_1_is_converted() -> None:
    """exp(log_scale) * (x + bias) outside, exp(log_scale) * (pre + c + bias) inside a layer with bias c."""
    old = {"log_scale": torch.tensor([0.5, -2.0]), "bias": torch.tensor([3.0, -1.0]), "initialized": torch.tensor(True)}
    layer, x = ActNorm(2), torch.randn(5, 2)
    layer.load_state_dict(old)
    torch.testing.assert_close(layer(x), old["log_scale"].exp() * (x + old["bias"]))
    torch.testing.assert_close(layer.shift.detach(), old["log_scale"].exp() * old["bias"])
    torch.manual_seed(0)
    network = ICNN(2, (2,), strong_convexity=0.0, divide_by_fan_in=False, actnorm=True)
    state = {name: tensor for name, tensor in network.state_dict().items() if "actnorm" not in name}
    network.load_state_dict(state | {f"layers.0.actnorm.{name}": tensor for name, tensor in old.items()})
    inner = old["log_scale"].exp() * (x @ state["layers.0.input_weight"].T + state["layers.0.bias"] + old["bias"])
    expected = torch.log1p(inner.exp()) @ state["output_weight"] + x @ state["output_input_weight"]
    torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_weight_averaging_keeps_the_start(use_buffers: bool) -> None:
    layer, rows = started()
    average = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    for _ in range(3):
        average.update_parameters(layer)
    assert average.module.initialized.dtype == torch.bool and bool(average.module.initialized)
    torch.testing.assert_close(average.module(rows), layer(rows))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(4, 3), r"expected \(N, 2\)"),
        (torch.zeros(2), r"expected \(N, 2\)"),
        (torch.zeros(0, 2), "N >= 1"),
        (torch.tensor([[1.0, torch.nan]]), "not finite"),
    ],
)
def test_rows_that_cannot_start_it_are_refused(rows: torch.Tensor, message: str) -> None:
    layer = ActNorm(2)
    with pytest.raises(ValueError, match=message):
        layer.initialize_(rows)
    assert not layer.initialized


def test_no_features_are_refused() -> None:
    with pytest.raises(ValueError, match="num_features=0"):
        ActNorm(0)
