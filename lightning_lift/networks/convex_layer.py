"""One hidden layer of an ICNN, and the inputs that the function is monotone in."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lightning_lift.networks.actnorm import ActNorm, upgrade_actnorm_


class ConvexLayer(nn.Module):
    """Parameters of one hidden layer: T_l (nonnegative), A_l and c_l, and its ActNorm.

    Args:
        dim: number of inputs that the function need not be monotone in.
        fan_in: width of the layer before; 0 for the first layer, which has no T.
        width: number of units h.
        actnorm: normalise the units before the activation.
        num_monotone: number of inputs that it is monotone in, whose columns of A_l are kept nonnegative beside it.
    """

    def __init__(self, dim: int, fan_in: int, width: int, actnorm: bool = False, num_monotone: int = 0) -> None:
        super().__init__()
        self.hidden_weight = nn.Parameter(torch.empty(width, fan_in)) if fan_in else None
        self.input_weight = nn.Parameter(torch.empty(width, dim))
        self.monotone_weight = nn.Parameter(torch.empty(width, num_monotone)) if num_monotone else None
        self.bias = nn.Parameter(torch.empty(width))
        self.actnorm = ActNorm(width) if actnorm else None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        upgrade_actnorm_(state_dict, f"{prefix}actnorm.")  # before the ActNorm's own, which does not see the bias here
        super()._load_from_state_dict(state_dict, prefix, *args)


def monotone_signs(dim: int, increasing: Sequence[int], decreasing: Sequence[int]) -> dict[int, float]:
    """The sign of the slope in each input that a function is monotone in, by position."""
    signs = {**dict.fromkeys(increasing, 1.0), **dict.fromkeys(decreasing, -1.0)}
    positions = all(type(column) is int and 0 <= column < dim for column in signs)
    if not positions or len(signs) < len(increasing) + len(decreasing):
        raise ValueError(
            f"increasing={list(increasing)}, decreasing={list(decreasing)}: name positions of the {dim} inputs, from 0 "
            f"to {dim - 1}, each once."
        )
    return signs
