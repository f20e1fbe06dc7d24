"""Plain ReLU networks for the rescaling experiments: a multilayer perceptron and a fully convolutional network."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ReLUMLP(nn.Sequential):
    """A multilayer perceptron with ReLU, PyTorch's default start times a constant.

    Shapes: (N, ...) with ``dim`` numbers a row, to scores (N, num_classes).

    Args:
        dim: numbers in a row.
        num_classes: scores in a row.
        widths: units of each hidden layer.
        start_scale: every parameter of the start is multiplied by it (0.1: a small-variance start).

    Raises:
        ValueError: a size below 1, or a start_scale that is not positive.
    """

    def __init__(
        self, dim: int, num_classes: int = 10, widths: Sequence[int] = (128, 128, 128, 128), start_scale: float = 1.0
    ) -> None:
        _check_sizes(dim=dim, num_classes=num_classes, widths=widths)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise((dim, *widths, num_classes)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1])
        _scale_start_(self, start_scale)


class ReLUConvNet(nn.Module):
    """3x3 convolutions with ReLU, a 1x1 convolution to the classes and the mean over the positions.

    The first convolution has stride 1, the others stride 2. There is no dense layer.

    Shapes: images (N, channels, side, side), or rows (N, channels * side^2), to scores (N, num_classes).

    Args:
        dim: numbers in an image, channels * side^2.
        num_classes: scores of an image.
        channels: channels of an image.
        widths: channels of each convolution.
        batch_norm: whether batch norm follows each 3x3 convolution.
        start_scale: every parameter of the start, except batch norm's, is multiplied by it.

    Raises:
        ValueError: a size below 1, a dim that is no square image, or a start_scale that is not positive.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 10,
        channels: int = 1,
        widths: Sequence[int] = (16, 32, 64),
        batch_norm: bool = False,
        start_scale: float = 1.0,
    ) -> None:
        _check_sizes(dim=dim, num_classes=num_classes, channels=channels, widths=widths)
        side = math.isqrt(dim // channels)
        if channels * side * side != dim:
            raise ValueError(f"dim={dim} is no square image of {channels} channel(s): set channels.")
        super().__init__()
        self.image = (channels, side, side)
        layers: list[nn.Module] = []
        for index, (inputs, outputs) in enumerate(itertools.pairwise((channels, *widths))):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride=1 if index == 0 else 2, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
        self.features = nn.Sequential(*layers)
        self.head = nn.Conv2d(widths[-1], num_classes, 1)
        _scale_start_(self, start_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, num_classes)."""
        scores: Tensor = self.head(self.features(x.reshape(-1, *self.image))).mean((2, 3))
        return scores


def _check_sizes(widths: Sequence[int], **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size}: must be at least 1.")
    if not widths or min(widths) < 1:
        raise ValueError(f"widths={list(widths)}: give at least one hidden layer, each of at least one unit.")


@torch.no_grad()
def _scale_start_(network: nn.Module, factor: float) -> None:
    if not (factor > 0.0 and math.isfinite(factor)):
        raise ValueError(f"start_scale={factor}: must be finite and positive.")
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            for parameter in module.parameters():
                parameter.mul_(factor)
