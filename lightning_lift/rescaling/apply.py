"""Function-preserving application of scales to parameters, and to what an optimizer remembers of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightning_lift.rescaling.unit_graph import NO_UNIT, UnitGraph

# How each kind of optimizer state changes when its parameter is multiplied by f: the gradient is divided by f.
_POWERS: dict[str, int] = {
    "momentum_buffer": -1, "exp_avg": -1, "grad_avg": -1, "exp_inf": -1, "prev": -1,
    "exp_avg_sq": -2, "max_exp_avg_sq": -2, "square_avg": -2, "sum": -2, "ax": 1,
}  # fmt: skip


def rescale_factors(graph: UnitGraph, log_scales: Tensor) -> dict[str, Tensor]:
    """The number that each parameter entry is multiplied by.

    Args:
        graph: the units.
        log_scales: u, shape (H,): incoming entries are multiplied by e^{u/2}, outgoing ones by e^{-u/2}.

    Returns:
        float64 tensors that broadcast to the parameters, by name; parameters without a unit are absent.

    Raises:
        ValueError: ``log_scales`` has another shape, or is not finite.
    """
    if log_scales.shape != (graph.num_units,):
        raise ValueError(f"log_scales of shape {tuple(log_scales.shape)}: expected ({graph.num_units},).")
    if not bool(torch.isfinite(log_scales).all()):
        raise ValueError("log_scales are not finite: nothing was rescaled.")
    padded = torch.cat([log_scales.detach().double().cpu(), torch.zeros(1, dtype=torch.float64)])
    assert NO_UNIT == -1  # indexes the zero at the end
    return {name: torch.exp(0.5 * (padded[use.incoming] - padded[use.outgoing])) for name, use in graph.uses.items()}


def apply_factors_(model: nn.Module, factors: Mapping[str, Tensor]) -> None:
    """Multiply parameters in place; dtype, device, sign and identity of each stay as they are.

    Args:
        model: the network.
        factors: positive, by parameter name, from ``rescale_factors``.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, factor in factors.items():
            parameter = parameters[name]
            # The product is formed in double precision, so that a half-precision weight is rounded once.
            wide = torch.float32 if parameter.device.type == "mps" else torch.float64
            scaled = parameter.to(wide) * factor.to(parameter.device, wide)
            parameter.copy_(scaled.to(parameter.dtype))


def transport_optimizer_state_(
    model: nn.Module, optimizer: torch.optim.Optimizer, factors: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Rescale what an optimizer remembers, so that it holds the same history in the new parameters.

    A parameter multiplied by f has its gradient divided by f: first moments (momentum) are divided by f, second
    moments by f^2.

    Args:
        model: the network, whose parameters the optimizer holds.
        optimizer: its state is changed in place.
        factors: the factors that were applied.

    Returns:
        Names of the state entries of rescaled parameters that are not known here and stay as they were.
    """
    unknown: set[str] = set()
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter)
        if name not in factors or not state:
            continue
        for key, value in state.items():
            if key == "step" or not isinstance(value, Tensor):
                continue
            power = _POWERS.get(str(key))
            if key == "momentum_buffer" and "square_avg" in state:
                power = 0  # RMSprop's holds gradients over their root mean square, which no scale changes
            if power is None or value.shape != parameter.shape:
                unknown.add(str(key))
                continue
            with torch.no_grad():
                value.mul_(factors[name].pow(power).to(value.device, value.dtype))
    return tuple(sorted(unknown))
