"""Networks in plain torch for the tests of rescaling: small ones of every supported kind, and a ResNet."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class IdentityBlock(nn.Module):
    """Fully connected residual block with an identity skip."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class DenseNet(nn.Module):
    """Concatenation of everything so far in front of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 5)
        self.b = nn.Linear(8, 4)
        self.c = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, F.relu(self.a(x))], 1)
        x = torch.cat([x, F.leaky_relu(self.b(x), 0.1)], 1)
        return self.c(x)


class ConvNet(nn.Module):
    """Convolutions with padding, stride and groups, both poolings, batch norm, dropout, flatten."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(6, 4, 3, stride=1, groups=2, bias=False)
        self.norm2 = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.head = nn.Linear(4 * 4, 5)
        self.norm3 = nn.BatchNorm1d(5) if norm else nn.Identity()
        self.last = nn.Linear(5, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.avg_pool2d(F.relu(self.norm2(self.conv2(F.pad(x, (1, 1, 1, 1))))), 2)
        x = self.drop(x.view(x.size(0), -1))
        return self.last(torch.relu(self.norm3(self.head(x))))


class SkipICNN(nn.Module):
    """ReLU input-convex network: nonnegative weights between layers, skips from the input."""

    def __init__(self, dim: int = 3, width: int = 6) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(dim, width) for _ in range(3))
        self.hidden = nn.ParameterList(nn.Parameter(torch.rand(width, width) / width) for _ in range(2))
        self.out = nn.Parameter(torch.rand(width) / width)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.inputs[0](x))
        for weight, layer in zip(self.hidden, list(self.inputs)[1:], strict=True):
            z = torch.relu(F.linear(z, weight) + layer(x))
        return z @ self.out + 0.01 * x.square().sum(1)


class Autoencoder(nn.Module):
    """Convolution and its transpose, group-wise bias, upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 2, stride=2)
        self.shift = nn.Parameter(torch.randn(4, 1, 1))
        self.mid = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2, groups=1)
        self.last = nn.ConvTranspose2d(3, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.down(x) + self.shift)
        x = F.relu(self.mid(x)) * 0.5
        x = F.interpolate(F.relu(self.up(x)), scale_factor=2)
        return torch.sigmoid(self.last(x).mean((2, 3)))


class BasicBlock(nn.Module):
    """Residual block of a ResNet-18: two 3x3 convolutions with batch norm, 1x1-convolution skip where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int, projection: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential()
        if projection:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.skip(x)
        return F.relu(out)


class ResNet(nn.Module):
    """ResNet-18 (He et al., 2016) with its widths divided by ``shrink``, small-image stem."""

    def __init__(self, shrink: int = 1, classes: int = 10) -> None:
        super().__init__()
        widths = [w // shrink for w in (64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        blocks, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for index in range(2):
                stride = 2 if stage and not index else 1
                blocks.append(BasicBlock(inputs, width, stride, stride != 1 or inputs != width))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def shake_norms_(model: nn.Module) -> nn.Module:
    """Gives batch norms statistics and affine parameters other than their start."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_()
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model


SUPPORTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(3, 7, 5, 6, 2), (3,)),
    "mlp with batch norm": (
        lambda: nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(8, 6), nn.PReLU(),
            nn.Linear(6, 2),
        ),
        (3,),
    ),
    "identity residual": (
        lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), IdentityBlock(6, 5), IdentityBlock(6, 4), nn.Linear(6, 2)),
        (3,),
    ),
    "residual on the input": (lambda: nn.Sequential(IdentityBlock(4, 5), nn.Linear(4, 2)), (4,)),
    "concatenation": (DenseNet, (3,)),
    "convolutional": (ConvNet, (2, 8, 8)),
    "convolutional without norm": (lambda: ConvNet(norm=False), (2, 8, 8)),
    "sequence": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 6, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 4, 3, padding=1, padding_mode="circular"),
            nn.ReLU(), nn.AvgPool1d(3, stride=2, padding=1), nn.Flatten(), nn.Linear(16, 2),
        ),
        (2, 16),
    ),
    "relu icnn": (SkipICNN, (3,)),
    "convolutional autoencoder": (Autoencoder, (1, 6, 6)),
    "resnet": (lambda: ResNet(shrink=16), (3, 16, 16)),
}  # fmt: skip


def build(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A network in float64 with uneven scales, and a batch for it."""
    torch.manual_seed(seed)
    make, shape = SUPPORTED[name]
    model = shake_norms_(make()).double()
    return model, torch.randn(6, *shape, dtype=torch.float64)
