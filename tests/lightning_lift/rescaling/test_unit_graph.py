"""Which units are found, and why the others are left alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_lift.rescaling import build_unit_graph, rescale_factors
from lightning_lift.rescaling.apply import apply_factors_
from tests.lightning_lift.rescaling.rescaling_networks import (
    SUPPORTED,
    ConvNet,
    IdentityBlock,
    ResNet,
    build,
    mlp,
    shake_norms_,
)


class Function(nn.Module):
    """A forward given as a function of the module and the input."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **children: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self._function = forward
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x: Tensor) -> Tensor:
        return self._function(self, x)


def relative_change_by_random_scales(model: nn.Module, x: Tensor, spread: float = 2.0) -> float:
    """Largest relative change of the output over both modes, for scales far from 1."""
    graph = build_unit_graph(model, x)
    torch.manual_seed(1)
    factors = rescale_factors(graph, spread * torch.randn(graph.num_units, dtype=torch.float64))
    scaled = copy.deepcopy(model)
    apply_factors_(scaled, factors)
    worst = 0.0
    for training in (True, False):
        outputs = []
        for net in (copy.deepcopy(model), copy.deepcopy(scaled)):
            torch.manual_seed(2)
            outputs.append(net.train(training)(x).detach())
        worst = max(worst, float((outputs[1] - outputs[0]).abs().max() / outputs[0].abs().max()))
    return worst


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_any_scales_preserve_the_function_in_both_modes(name: str) -> None:
    for seed in range(2):
        model, x = build(name, seed)
        assert build_unit_graph(model, x).num_units > 0
        assert relative_change_by_random_scales(model, x) < 1e-12


def test_entries_of_an_mlp() -> None:
    graph = build_unit_graph(mlp(2, 3, 4, 1), torch.ones(1, 2))
    assert graph.num_units == 7
    first, second, third = (graph.uses[f"{i}.weight"] for i in (0, 2, 4))
    assert first.incoming.flatten().tolist() == [0, 1, 2]
    assert first.outgoing.unique().tolist() == [-1]
    assert second.incoming.flatten().tolist() == [3, 4, 5, 6]
    assert second.outgoing.flatten().tolist() == [0, 1, 2]
    assert third.incoming.unique().tolist() == [-1]
    assert graph.uses["2.bias"].incoming.tolist() == [3, 4, 5, 6]
    assert "4.bias" not in graph.uses  # the output's
    assert [(a.label, a.count, a.reason) for a in graph.left_alone] == [("4", 1, "network output")]


def test_flatten_gives_each_channel_its_block_of_features() -> None:
    graph = build_unit_graph(ConvNet(), torch.ones(1, 2, 8, 8))
    read = graph.uses["head.weight"].outgoing.flatten()
    assert read.reshape(4, 4).unique(dim=1).shape == (4, 1)
    assert len(read.unique()) == 4


def test_batch_norm_takes_the_scale() -> None:
    graph = build_unit_graph(ConvNet(), torch.ones(1, 2, 8, 8))
    assert graph.uses["norm1.weight"].incoming.tolist() == graph.uses["norm1.bias"].incoming.tolist()
    assert "conv1.weight" not in graph.uses
    assert any("norm1" in a.reason for a in graph.left_alone if a.label == "conv1")


def test_resnet_units() -> None:
    """Inner channels of every block, and one group of inter-block channels a stage."""
    graph = build_unit_graph(ResNet(shrink=16), torch.ones(1, 3, 16, 16))
    widths = [4, 8, 16, 32]
    assert graph.num_units == sum(2 * w for w in widths) + sum(widths)
    labels = [b.label for b in graph.blocks]
    assert "blocks.2.bn2+blocks.2.skip.1+blocks.3.bn2" in labels
    assert "bn1+blocks.0.bn2+blocks.1.bn2" in labels


def test_identity_skip_on_the_input_leaves_its_channels_alone() -> None:
    graph = build_unit_graph(nn.Sequential(IdentityBlock(3, 5), nn.Linear(3, 1)), torch.ones(1, 3))
    assert [b.label for b in graph.blocks] == ["0.first"]
    assert any(a.label == "0.second" and "input" in a.reason for a in graph.left_alone)


def reasons(model: nn.Module, x: Tensor) -> str:
    return " | ".join(f"{a.label}: {a.reason}" for a in build_unit_graph(model, x).left_alone)


def _shared_parameter() -> nn.Module:
    model = mlp(3, 3, 3, 3)
    model[2].weight = model[0].weight
    return model


def _frozen() -> nn.Module:
    model = mlp(3, 4, 1)
    model[0].weight.requires_grad_(False)
    return model


def _hooked() -> nn.Module:
    model = mlp(3, 4, 1)
    model[0].register_forward_hook(lambda module, args, output: output + 1.0)
    return model


_LINEARS = {"a": nn.Linear(3, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 1)}


def _net(forward: Callable[..., Tensor]) -> nn.Module:
    return Function(forward, **copy.deepcopy(_LINEARS))


LEFT_ALONE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "module used twice": (
        lambda: _net(lambda m, x: m.c(torch.relu(m.b(torch.relu(m.b(torch.relu(m.a(x)))))))),
        "'b.weight' is used 2 times",
    ),
    "parameter in two layers": (_shared_parameter, "is used 2 times"),
    "frozen": (_frozen, "frozen"),
    "hook": (_hooked, "hooks"),
    "weight norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), parametrizations.weight_norm(nn.Linear(4, 1))),
        "parametrizations",
    ),
    "sigmoid": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 1)), "Sigmoid"),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)), "LayerNorm"),
    "plain batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1)),
        "no affine parameters",
    ),
    "gelu": (lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)), "approximate=True"),
    "relu6": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU6(), nn.Linear(4, 1)), "ReLU6"),
    "constant added": (lambda: _net(lambda m, x: m.c(torch.relu(m.a(x) + 1.0))), "adds a constant"),
    "computed weight": (
        lambda: _net(lambda m, x: F.linear(torch.relu(m.a(x)), F.softplus(m.c.weight))),
        "not known to be rescalable",
    ),
    "dead end": (lambda: _net(lambda m, x: m.c(torch.relu(m.a(x))) + 0.0 * m.b(m.a(x) * 0.0)[:, :1]), "output"),
    "product": (lambda: _net(lambda m, x: m.c(m.a(x) * torch.relu(m.a(x)))), "'mul'"),
    "weight returned too": (
        lambda: _net(lambda m, x: m.c(torch.relu(m.a(x))) + m.a.weight.sum()),
        "'a.weight' enters operation",
    ),
    "softmax": (lambda: _net(lambda m, x: m.c(torch.softmax(m.a(x), 1))), "softmax"),
    "cumulative sum": (lambda: _net(lambda m, x: m.c(m.a(x).cumsum(1))), "cumsum"),
    "attention": (
        lambda: Function(
            lambda m, x: m.c(m.t(m.a(x).unsqueeze(1))[:, 0]),
            t=nn.TransformerEncoderLayer(4, 1, 8, batch_first=True, dropout=0.0),
            **copy.deepcopy(_LINEARS),
        ),
        "TransformerEncoderLayer",
    ),
}


@pytest.mark.parametrize("name", sorted(LEFT_ALONE))
def test_what_cannot_be_rescaled_is_left_alone_with_the_reason(name: str) -> None:
    make, reason = LEFT_ALONE[name]
    torch.manual_seed(0)
    model = make().double()
    x = torch.randn(5, 3, dtype=torch.float64)
    assert reason in reasons(model, x)
    assert relative_change_by_random_scales(model, x) < 1e-12


class RandomNet(nn.Module):
    """A random network of convolutions, norms, activations, pooling, skips and concatenations."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.plan: list[tuple[str, int, int]] = []
        self.layers = nn.ModuleList()
        widths = [3]
        for _ in range(draw.randint(3, 8)):
            left, right = draw.randrange(len(widths)), draw.randrange(len(widths))
            kind = draw.choice(["conv", "conv", "conv", "norm", "relu", "relu", "add", "cat", "max", "mean", "tanh"])
            layer: nn.Module = nn.Identity()
            width = widths[left]
            if kind == "conv":
                width = draw.choice([4, 6, widths[-1]])
                divides = width % 2 == 0 and widths[left] % 2 == 0
                groups = draw.choice([1, 2]) if divides else 1
                layer = nn.Conv2d(widths[left], width, draw.choice([1, 3]), padding="same", groups=groups)
            elif kind == "norm":
                layer = nn.BatchNorm2d(width)
            elif kind == "add" and widths[left] != widths[right]:
                kind, width = "cat", widths[left] + widths[right]
            elif kind == "cat":
                width += widths[right]
            self.layers.append(layer)
            self.plan.append((kind, left, right))
            widths.append(width)
        self.head = nn.Linear(4 * widths[-1], 2)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        one: dict[str, Callable[[Tensor], Tensor]] = {
            "relu": lambda v: F.leaky_relu(v, 0.3),
            "max": lambda v: F.max_pool2d(v, 3, 1, 1),
            "mean": lambda v: F.avg_pool2d(v, 3, 1, 1),
            "tanh": torch.tanh,
        }
        for layer, (kind, left, right) in zip(self.layers, self.plan, strict=True):
            if kind in {"add", "cat"}:
                a, b = values[left], values[right]
                values.append(a + b if kind == "add" else torch.cat([a, b], 1))
            else:
                values.append(one.get(kind, layer)(values[left]))
        return self.head(F.adaptive_avg_pool2d(values[-1], 2).flatten(1))


def test_random_networks() -> None:
    rescalable = 0
    for seed in range(30):
        torch.manual_seed(seed)
        model = shake_norms_(RandomNet(seed)).double()
        x = torch.randn(3, 3, 4, 4, dtype=torch.float64)
        rescalable += build_unit_graph(model, x).num_units > 0
        assert relative_change_by_random_scales(model, x) < 1e-12, seed
    assert rescalable > 10


def _into_zeros(values: Tensor) -> Tensor:
    padded = torch.zeros(len(values), 4, dtype=values.dtype)
    padded[:, 1:] = values
    return padded


UNUSUAL: dict[str, tuple[Callable[..., Tensor], int]] = {
    "gate": (lambda m, x: m.c(torch.relu(m.a(x)) * torch.sigmoid(x.sum(1, keepdim=True))), 4),
    "maximum of two layers": (lambda m, x: m.c(torch.maximum(m.a(x), F.linear(x, m.d))), 4),
    "bias added by hand": (lambda m, x: m.c(torch.relu(F.linear(x, m.d) + m.e)), 4),
    "matrix product": (lambda m, x: m.c(torch.relu(x @ m.d.T + m.e)), 4),
    "addmm": (lambda m, x: m.c(torch.relu(torch.addmm(m.e, x, (m.d / 3).t()))), 4),
    "scaled addmm": (lambda m, x: m.c(torch.relu(torch.addmm(m.e, x, m.d.T, beta=2.0, alpha=3.0))), 4),
    "largest of pairs": (lambda m, x: m.c(m.a(x).view(len(x), 2, 2).amax(2).repeat(1, 2)), 2),
    "written into zeros": (lambda m, x: m.c(_into_zeros(torch.relu(m.a(x))[:, :3])), 3),
    "part of a weight": (lambda m, x: m.c(torch.relu(F.linear(x[:, :2], m.d[:, :2]))), 4),
    "chunks": (lambda m, x: m.c(torch.cat([torch.relu(p) for p in m.b(torch.relu(m.a(x))).chunk(2, 1)], 1)), 8),
    "padded shortcut": (lambda m, x: m.c(torch.relu(m.b(torch.relu(m.a(x))) + F.pad(m.f(x), (0, 2)))), 8),
    "sum over features": (lambda m, x: m.c(torch.relu(m.a(x)).sum(1, keepdim=True).expand(-1, 4)), 1),
    "in place": (lambda m, x: m.c(m.a(x).relu_().mul_(2.0).add_(F.linear(x, m.d))), 4),
    "clamp": (lambda m, x: m.c(m.a(x).clamp(min=0)), 4),
    "negative and absolute": (lambda m, x: m.c((-m.a(x)).abs()), 4),
    "shape arithmetic": (lambda m, x: m.c(torch.relu(m.a(x)).view(x.shape[0], 2, -1).reshape(len(x), 4)), 4),
    "branch on the shape": (lambda m, x: m.c(torch.relu(m.a(x))) if x.ndim == 2 else x, 4),
    "other path in training": (lambda m, x: m.c(torch.relu(m.a(x)) if m.training else torch.relu(m.a(x)) * 0.5), 4),
}


@pytest.mark.parametrize("name", sorted(UNUSUAL))
def test_unusual_forms_are_followed(name: str) -> None:
    forward, units = UNUSUAL[name]
    torch.manual_seed(0)
    model = Function(
        forward, d=nn.Parameter(torch.randn(4, 3)), e=nn.Parameter(torch.randn(4)), f=nn.Linear(3, 2),
        **copy.deepcopy(_LINEARS),
    ).double()  # fmt: skip
    x = torch.randn(5, 3, dtype=torch.float64)
    assert build_unit_graph(model, x).num_units == units
    assert relative_change_by_random_scales(model, x) < 1e-12


def test_what_happens_inside_of_layers_is_followed() -> None:
    torch.manual_seed(0)
    row, image = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, 6, 6, dtype=torch.float64)
    layers: dict[str, nn.Module] = {
        "reflect": nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"),
        "replicate": nn.Conv2d(8, 4, 3, padding=1, padding_mode="replicate"),
        "circular": nn.Conv2d(8, 4, 3, padding=1, padding_mode="circular"),
        "transposed in groups": nn.ConvTranspose2d(8, 4, 3, padding=1, groups=2),
    }
    for name, layer in layers.items():
        model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), layer, nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)).double()
        assert build_unit_graph(model, image).num_units == 12, name
        assert relative_change_by_random_scales(model, image) < 1e-12, name
    attention = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True)
    model = Function(lambda m, x: m.t(m.a(x)[:, None])[:, 0], t=attention, a=nn.Linear(3, 4)).double()
    assert [block.label for block in build_unit_graph(model, row).blocks] == ["t.linear1"]
    assert relative_change_by_random_scales(model, row) < 1e-12
    recurrent = Function(
        lambda m, x: m.c(torch.relu(m.b(m.t(x[:, None])[0][:, 0]))), t=nn.LSTM(3, 4, batch_first=True),
        b=nn.Linear(4, 5), c=nn.Linear(5, 1),
    ).double()  # fmt: skip
    assert build_unit_graph(recurrent, row).num_units == 5
    assert relative_change_by_random_scales(recurrent, row) < 1e-12


def test_a_layer_that_only_training_treats_otherwise_is_left_alone() -> None:
    model = Function(
        lambda m, x: m.c(torch.relu(m.a(x)) if m.training else torch.tanh(m.a(x))), **copy.deepcopy(_LINEARS)
    ).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    assert build_unit_graph(model, x).num_units == 0
    assert relative_change_by_random_scales(model, x) < 1e-12


def test_approximate_lets_smooth_activations_through() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 1))
    assert build_unit_graph(model, torch.ones(1, 3)).num_units == 0
    graph = build_unit_graph(model, torch.ones(1, 3), approximate=True)
    assert graph.num_units == 9
    assert graph.smooth == ("GELU", "Softplus")
