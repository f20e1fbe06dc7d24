"""Rescaling a whole module, also where a parameterization keeps the nonnegative weights of its network."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_lift.parameterizations.base import Parameterization
from lightning_lift.rescaling.apply import transport_optimizer_state_
from lightning_lift.rescaling.report import RescalingReport
from lightning_lift.rescaling.rescale import Method, output_change, rescale_, run_network
from lightning_lift.rescaling.tracing import ExampleInput


@dataclasses.dataclass(frozen=True)
class ModuleRescaling:
    """The outcome of ``rescale_module_``.

    Attributes:
        report: what was done to the network; ``function_change`` is that of the network as the module now holds it.
        factors: by the module's own parameter names, what the *gradient* of each stored number is divided by. For a
            weight that is stored as it is, that is what it was multiplied by.
        raised: weights that the parameterization had to raise to its smallest one.
        untracked: stored numbers whose factor is not known, so that optimizer state on them cannot be transported.
    """

    report: RescalingReport
    factors: dict[str, Tensor]
    raised: int
    untracked: tuple[str, ...]


def rescale_module_(
    module: nn.Module,
    method: Method = "pathcond",
    *,
    example_input: ExampleInput,
    approximate: bool = False,
    tolerance: float = 1e-2,
    max_sweeps: int = 10,
) -> ModuleRescaling:
    """Rescale a module in place; like ``rescale_``, and also for a module with a ``parameterization``.

    Where ``module.parameterization`` keeps the nonnegative weights of ``module.network``, the scales are computed on a
    plain copy of the network with the present weights. Its free parameters are multiplied, and the constrained ones are
    set by ``parameterization.initialize_``.

    Args:
        module: a network, a LightningModule whose forward is one, or a ConvexModule.
        method: ``pathcond`` or ``enorm``.
        example_input: of the module's forward; points (N, D) for a ConvexModule.
        approximate: rescale through smooth activations too; the function then changes.
        tolerance: stop when the sum of |du| over a sweep is below it.
        max_sweeps: largest number of sweeps.

    Raises:
        ValueError: an unknown method, an example that does not fit, weights that are not finite, or weights that depend
            on the batch (a lift), so that no one network has them.
        RuntimeError: the function changed by more than rounding; the module is as before.
    """
    settings = {"approximate": approximate, "tolerance": tolerance, "max_sweeps": max_sweeps}
    parameterization = getattr(module, "parameterization", None)
    if not isinstance(parameterization, Parameterization):
        report = rescale_(module, method, example_input=example_input, **settings)  # type: ignore[arg-type]
        return ModuleRescaling(report, report.factors, 0, ())
    if parameterization.needs_calibration:
        raise ValueError(
            f"{type(parameterization).__name__} makes the weights from each batch, so there is no one network to "
            "rescale, and setting its weights would erase what it has learned. Use the parameterization pgd or direct."
        )
    copied = plain_copy(module)
    before = run_network(copied, example_input)
    report = rescale_(copied, method, example_input=example_input, **settings)  # type: ignore[arg-type]
    kept = [(p, p.detach().clone()) for p in module.parameters()]
    factors, raised, untracked = _write_back(module, parameterization, copied, report.factors)
    change = output_change(before, run_network(plain_copy(module), example_input))
    allowed = torch.finfo(next(module.parameters()).dtype).eps ** 0.5
    if not report.smooth and not change <= allowed:
        with torch.no_grad():
            for parameter, values in kept:
                parameter.copy_(values)
        raise RuntimeError(
            f"{type(parameterization).__name__} cannot hold the rescaled weights: {raised} of them are below the "
            f"smallest that it keeps, and raising them changed the output by {change:.3g} relative to its size "
            f"(allowed {allowed:.1g}). Nothing was rescaled; lower the floor of the parameterization."
        )
    report = dataclasses.replace(report, function_change={"eval": change})
    return ModuleRescaling(report, factors, raised, untracked)


def plain_copy(module: nn.Module) -> nn.Module:
    """A copy of ``module.network`` with the present weights of ``module.parameterization`` as parameters.

    Args:
        module: with a bound parameterization; evaluation weights are taken.
    """
    parameterization = module.parameterization
    assert isinstance(parameterization, Parameterization)
    with torch.no_grad():
        network = copy.deepcopy(module.get_submodule("network"))
        for name, weights in parameterization.weights(None).items():
            owner, _, leaf = name.rpartition(".")
            network.get_submodule(owner).register_parameter(leaf, nn.Parameter(weights.detach().clone()))
    return network


def _write_back(
    module: nn.Module, parameterization: Parameterization, copied: nn.Module, factors: dict[str, Tensor]
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    rescaled = dict(copied.named_parameters())
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in module.get_submodule("network").named_parameters():
            if name in factors:
                parameter.copy_(rescaled[name])
                found[f"network.{name}"] = factors[name]
        before = parameterization.latent(None).detach().clone()
        raised = parameterization.initialize_({name: rescaled[name] for name in parameterization.names})
        after = parameterization.latent(None).detach()
    flat = torch.cat(
        [
            factors.get(name, torch.ones((), dtype=torch.float64)).expand(shape).reshape(-1)
            for name, shape in parameterization.shapes.items()
        ]
    )
    readout = parameterization.readout
    if readout is not None:
        # d theta / d latent = psi' changes too: the gradient of the latent is multiplied by psi'(after) / psi'(before)
        slopes = [readout.slope(latent.to("cpu", torch.float64)) for latent in (before, after)]
        flat = flat * slopes[0] / slopes[1].clamp(min=torch.finfo(torch.float64).tiny)
    stored = dict(parameterization.named_parameters())
    if len(stored) == 1 and next(iter(stored.values())).shape == flat.shape:
        return found | {f"parameterization.{next(iter(stored))}": flat}, raised, ()
    return found, raised, tuple(f"parameterization.{name}" for name in stored)


def transport_states_(
    module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], rescaling: ModuleRescaling
) -> str:
    """Rescale what the optimizers remember, and say what was done.

    Args:
        module: the module that was rescaled.
        optimizers: over its parameters.
        rescaling: what ``rescale_module_`` returned.
    """
    if not any(state for optimizer in optimizers for state in optimizer.state.values()):
        return "the optimizer holds no state yet"
    unknown = sorted({key for o in optimizers for key in transport_optimizer_state_(module, o, rescaling.factors)})
    said = "optimizer state: first moments (momentum) divided by the factors, second moments by their squares"
    if unknown:
        said += f"; left as they were, not known here: {', '.join(unknown)}"
    parameters = dict(module.named_parameters())
    if lost := [n for n in rescaling.untracked if any(o.state.get(parameters[n]) for o in optimizers)]:
        said += f"; left as it was for {', '.join(lost)}"
    return said
