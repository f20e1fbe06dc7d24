"""Activations as the largest of affine functions: exact for relu, tangents with a stated error for smooth ones."""

import numpy as np
import torch

from lightning_lift.networks.activations import Activation, ReLU
from lightning_lift.programs.function import Array, Layers

_FAR = 40.0  # beyond which s is its asymptote: 0 on the left, its argument on the right
_MOST = 4096


def planes_of(layers: Layers, max_error: float | None, factor: float) -> tuple[Array, Array]:
    """Slopes and intercepts (P,) whose maximum stands for the activation, the first of them 0 and 0.

    Each unit is at most e too low. As s is nondecreasing with slopes below 1 and T, t >= 0, f is then too low (or too
    high, where it is concave) by at most |factor| e t (1 + T_L (1 + T_{L-1} (1 + ...))) at every point; e is chosen so
    that this is ``max_error``.

    Args:
        layers: of the network.
        max_error: largest error of f, in its units; of no use to relu, whose planes are exact.
        factor: of the network in f.

    Raises:
        ValueError: a smooth activation without a ``max_error``, or one that thousands of tangents do not reach.
    """
    if isinstance(layers.activation, ReLU):
        return np.array([0.0, 1.0]), np.zeros(2)
    name = type(layers.activation).__name__
    if max_error is None or not max_error > 0.0:
        raise ValueError(
            f"{name} is not piecewise linear: state max_error, the largest error of the function's value, for tangent "
            "planes; of a softplus network, to_cvxpy makes an exact program."
        )
    units = np.ones_like(layers.biases[0])
    for hidden in layers.hidden:
        units = 1.0 + hidden @ units
    unit_error = max_error / max(abs(factor) * float(layers.output @ units), 1e-300)
    grid = torch.linspace(-_FAR, _FAR, 8_001, dtype=torch.float64)
    spread = layers.activation.second(grid).sqrt().cumsum(0)  # tangents this dense have equal gaps between them
    share, count = (spread / spread[-1]).numpy(), 4
    while count <= _MOST:
        slopes, intercepts, error = _tangents(
            layers.activation, np.interp((np.arange(count) + 0.5) / count, share, grid.numpy())
        )
        if error <= unit_error:
            return slopes, intercepts
        count = count * 5 // 4
    raise ValueError(f"max_error={max_error:g} would take more than {_MOST} tangents a unit of {name}: allow more.")


def _tangents(activation: Activation, at: Array) -> tuple[Array, Array, float]:
    """Planes of the tangents at these points and of both asymptotes, and the largest gap below s: where two cross."""
    points = torch.from_numpy(at)
    inner = activation.first(points)
    slopes = np.concatenate([[0.0], inner.numpy(), [1.0]])
    intercepts = np.concatenate([[0.0], (activation.value(points) - inner * points).numpy(), [0.0]])
    crossings = (intercepts[:-1] - intercepts[1:]) / (slopes[1:] - slopes[:-1])
    gaps = activation.value(torch.from_numpy(crossings)).numpy() - (slopes[:-1] * crossings + intercepts[:-1])
    return slopes, intercepts, float(gaps.max())
