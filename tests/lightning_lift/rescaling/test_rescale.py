"""The one call: exact, reported, and undone where something is wrong."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lightning_lift.networks import ICNN
from lightning_lift.rescaling import rescale_
from tests.lightning_lift.rescaling.rescaling_networks import SUPPORTED, ResNet, SkipICNN, build, mlp


@pytest.mark.parametrize("name", sorted(SUPPORTED))
@pytest.mark.parametrize("method", ["pathcond", "enorm"])
def test_function_is_preserved(name: str, method: str) -> None:
    model, x = build(name)
    original = copy.deepcopy(model)
    report = rescale_(model.train(), method, example_input=x)
    assert model.training
    assert report.objective_after < report.objective_before
    assert set(report.function_change) == {"train", "eval"}
    assert max(report.function_change.values()) < 1e-12
    for training in (True, False):
        outputs = []
        for net in (original, model):
            torch.manual_seed(0)
            outputs.append(copy.deepcopy(net).train(training)(x).detach())
        assert float((outputs[1] - outputs[0]).abs().max()) < 1e-12 * float(outputs[0].abs().max())


def test_buffers_and_gradient_flags_stay() -> None:
    model, x = build("convolutional")
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    rescale_(model.train(), example_input=x)
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())
    assert all(p.requires_grad and p.is_leaf and p.grad is None for p in model.parameters())


def test_path_kernel_after_rescaling_is_what_the_report_says() -> None:
    """A second call starts where the first ended."""
    model, x = build("convolutional")
    first = rescale_(model, example_input=x, tolerance=1e-10, max_sweeps=2000)
    second = rescale_(model, example_input=x, tolerance=1e-6)
    assert second.condition_before.arithmetic_over_geometric == pytest.approx(
        first.condition_after.arithmetic_over_geometric, rel=1e-9
    )
    assert float(second.log_scales.abs().max()) < 1e-8
    assert second.sweeps == 1


def test_nonnegative_weights_stay_nonnegative() -> None:
    torch.manual_seed(0)
    model = SkipICNN().double()
    model.hidden[0].data[:, 0] = 0.0
    zeros = model.hidden[0] == 0
    report = rescale_(model, example_input=torch.randn(4, 3, dtype=torch.float64))
    assert all(bool((w >= 0).all()) for w in [*model.hidden, model.out])
    assert torch.equal(model.hidden[0] == 0, zeros)
    assert report.num_units == 3 * 6 - 1
    assert any("no path" in a.reason for a in report.left_alone)


@pytest.mark.parametrize("divide", [False, True])
def test_icnn_of_this_package(divide: bool) -> None:
    torch.manual_seed(0)
    model = ICNN(3, (8, 8), activation="relu", strong_convexity=0.02, divide_by_fan_in=divide).double()
    report = rescale_(model, example_input=torch.randn(9, 3, dtype=torch.float64))
    assert report.num_units == 16
    assert report.function_change["eval"] < 1e-12
    assert all(bool((model.get_parameter(n) >= 0).all()) for n in model.nonnegative_names())
    smooth = rescale_(ICNN(3, (8, 8)), example_input=torch.randn(9, 3))
    assert smooth.num_units == 0


def test_smooth_activations_are_approximate_and_measured() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    before = model(x).detach()
    report = rescale_(model, example_input=x, approximate=True)
    change = float((model(x) - before).abs().max() / before.abs().max())
    assert report.num_units == 32
    assert report.smooth == ("GELU", "SiLU")
    assert report.function_change["eval"] == pytest.approx(change, rel=1e-9)
    assert change > 1e-6
    assert "approximate through GELU, SiLU" in str(report)


class _Cheat(nn.Module):
    """Does something with a weight that no graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x))) * float(self.a.bias.detach().numpy().sum())


def test_a_wrong_reading_is_undone() -> None:
    model = _Cheat()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.raises((RuntimeError, ValueError)):
        rescale_(model, example_input=torch.randn(4, 3))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_a_network_without_anything_to_rescale() -> None:
    for model, x in ((nn.GRU(3, 4), torch.randn(4, 5, 3)), (nn.Linear(3, 1), torch.randn(4, 3))):
        report = rescale_(nn.Sequential(model), example_input=x)
        assert report.num_units == 0
        assert report.sweeps == 0
        assert set(report.function_change.values()) == {0.0}
        assert "0 units" in str(report)


def test_errors_name_the_way_out() -> None:
    with pytest.raises(ValueError, match="choose 'pathcond' or 'enorm'"):
        rescale_(mlp(2, 3, 1), "other", example_input=torch.ones(1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not fit"):
        rescale_(mlp(2, 3, 1), example_input=(torch.ones(1, 2), 3))


def test_float32_resnet() -> None:
    torch.manual_seed(0)
    model = ResNet(shrink=4)
    report = rescale_(model.train(), example_input=torch.randn(4, 3, 32, 32))
    assert report.num_units == 2880 // 4
    assert max(report.function_change.values()) < 1e-4
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_report_reads_well() -> None:
    model, x = build("convolutional")
    text = str(rescale_(model, example_input=x))
    for part in ("pathcond: 15 units in 3 layers", "objective", "log-scales", "function change (exact)", "left alone"):
        assert part in text


@pytest.mark.slow
def test_two_moons_trains_to_a_lower_loss() -> None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    from rescaling_two_moons import compare  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    losses = compare(seeds=3, steps=3000)
    assert sum(losses["pathcond"]) <= 0.6 * sum(losses["none"])
