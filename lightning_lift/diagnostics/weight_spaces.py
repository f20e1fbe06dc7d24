"""The spaces in which a module's loss is sliced: its network's weights, and the numbers that it trains."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from lightning_lift.datamodules.batches import Batch, num_rows
from lightning_lift.diagnostics.probe import undisturbed
from lightning_lift.parameterizations.base import Parameterization


class Landscaped(Protocol):
    """What a landscape needs of a module: a ``ConvexModule`` has it (a diagnostic does not import modules)."""

    parameterization: Parameterization
    network: nn.Module

    def batch_loss(self, batch: Any) -> Tensor:
        """The task's loss, a scalar, the mean over the batch."""


class GivenWeights(Parameterization):
    """Stand in for a module's parameterization: the weights are what it is told, of any sign.

    Args:
        names: the constrained tensors.
        weights: every tensor that the parameterization gives, by name; their values are changed in place.
    """

    def __init__(self, names: Iterable[str], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.shapes = {name: weights[name].shape for name in self.names}
        self.given = dict(weights)

    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        raise RuntimeError("GivenWeights stands in for a bound parameterization and cannot be bound itself.")

    def _set_weights(self, flat: Tensor) -> int:
        for name, piece in self.split(flat).items():
            self.given[name].copy_(piece)
        return 0

    def latent(self, batch: Tensor | None = None) -> Tensor:
        """The constrained weights, shape (d,)."""
        return torch.cat([self.given[name].reshape(-1) for name in self.names])

    def weights(self, batch: Tensor | None = None, latent: Tensor | None = None) -> dict[str, Tensor]:
        """The given weights by name."""
        return self.given if latent is None else self.given | self.split(latent)


class _Space:
    """A vector of numbers in named tensors of a module, and the module's loss as a function of it."""

    tensors: dict[str, Tensor]

    def __init__(self, module: Landscaped, rows: Tensor | Batch) -> None:
        self.module = module
        self.rows = rows

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Flat numbers (P,) of tensors by name, float32 or wider.

        Raises:
            ValueError: names or sizes that are not this space's.
        """
        for name, own in self.tensors.items():
            if name not in tensors or tensors[name].shape != own.shape:
                found = tuple(tensors[name].shape) if name in tensors else None
                raise ValueError(
                    f"{name} has shape {tuple(own.shape)} in one run and {found} in another: a slice needs runs of one "
                    "network."
                )
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.tensors])

    def loss(self, vector: Tensor, strict: bool = False) -> float:
        """The loss at a vector (P,), in nats where the task has a likelihood; NaN where it is not defined.

        Args:
            vector: the numbers; the module's are replaced by them.
            strict: raise instead of NaN, to tell a fault from a point without a loss.
        """
        self._set(vector)
        return evaluation_loss(self.module, self.rows, strict)

    @torch.no_grad()
    def _set(self, vector: Tensor) -> None:
        pieces = vector.split([tensor.numel() for tensor in self.tensors.values()])
        for piece, tensor in zip(pieces, self.tensors.values(), strict=True):
            tensor.copy_(piece.view(tensor.shape))


class NetworkSpace(_Space):
    """Theta together with the network's free weights, as evaluation sees them: the same space for every arm.

    A slice in theta alone would have to borrow one run's free weights, and no other run would have its own loss at its
    own end point. Numbers outside the network (a trained proposal of log Z) stay those of the module.

    Args:
        module: calibrated; its parameterization is replaced.
        rows: evaluation data in training units, shape (N, D).
    """

    def __init__(self, module: Landscaped, rows: Tensor | Batch) -> None:
        super().__init__(module, rows)
        weights = network_weights(module)
        names = module.parameterization.names
        given = {name: tensor.clone() for name, tensor in weights.items() if name not in _parameters(module.network)}
        module.parameterization = GivenWeights(names, given)
        own = _parameters(module.network)
        self.tensors = {name: given.get(name, own.get(name)) for name in sorted(weights)}  # type: ignore[misc]
        constrained = [torch.full((t.numel(),), name in names) for name, t in self.tensors.items()]
        self._constrained = torch.cat(constrained)

    def lowest(self, vector: Tensor) -> float:
        """The smallest constrained weight of a vector (P,): below 0 the network need not be convex there."""
        return float(vector[self._constrained].min())


class TrainedSpace(_Space):
    """Everything that a run trains in network and parameterization: for a lift body and emission phi, and slack b.

    The network's free weights are in it: they move in the same training. At each point the reference summary is made
    anew from the same rows, because it belongs to one body.

    Args:
        module: the module.
        rows: evaluation data in training units, shape (N, D) or with parts.
        calibration: what a lift conditions on, of the rows of the reference summary.
    """

    def __init__(self, module: Landscaped, rows: Tensor | Batch, calibration: Iterable[Tensor]) -> None:
        super().__init__(module, rows)
        self._calibration = [batch.clone() for batch in calibration]
        self.tensors = {
            name: parameter
            for name, parameter in cast(nn.Module, module).named_parameters()
            if name.startswith(("parameterization.", "network.")) and parameter.requires_grad
        }

    @property
    def filter_sizes(self) -> list[int]:
        """Sizes of the filters: rows of matrices (and of what the slack stands for); other tensors are one each."""
        sizes: list[int] = []
        for name, tensor in self.tensors.items():
            shapes = [tensor.shape]
            if name == "parameterization.slack":
                shapes = list(self.module.parameterization.shapes.values())
            for shape in shapes:
                rows = shape[0] if len(shape) > 1 else 1
                sizes += [shape.numel() // rows] * rows
        return sizes

    def loss(self, vector: Tensor, strict: bool = False) -> float:
        """The loss at a vector (P,), after calibration; NaN where it is not defined.

        Args:
            vector: the numbers; the module's are replaced by them.
            strict: raise instead of NaN.
        """
        self._set(vector)
        try:
            self.module.parameterization.calibrate(self._calibration)
        except (ValueError, ArithmeticError):
            if strict:
                raise
            return math.nan
        return evaluation_loss(self.module, self.rows, strict)


@torch.no_grad()
def network_weights(module: Landscaped) -> dict[str, Tensor]:
    """Every weight of the network under evaluation by its name in the network, emitted or its own, detached.

    Args:
        module: calibrated where it needs to be.
    """
    with undisturbed(cast(nn.Module, module)):
        cast(nn.Module, module).eval()
        emitted = module.parameterization.weights(None)
    return {name: tensor.detach() for name, tensor in (_parameters(module.network) | emitted).items()}


def evaluation_loss(module: Landscaped, rows: Tensor | Batch, strict: bool = False) -> float:
    """The task's loss on fixed rows, in evaluation mode, with fixed random draws.

    The mean negative log-likelihood where the module has ``log_prob_scaled`` (with the log Z of evaluation: the
    training estimate's value may not be one), else ``batch_loss``. Two calls give the same number: a window that
    follows the density and torch's generators are put back.

    Args:
        module: calibrated where it needs to be.
        rows: in training units, shape (N, D) or with parts.
        strict: raise instead of NaN.

    Returns:
        NaN where the loss is not finite or cannot be computed (no finite log Z, no Cholesky factor).

    Raises:
        ValueError: only if strict, a loss that is not finite; likewise what the task raises.
    """
    with undisturbed(cast(nn.Module, module)), torch.no_grad():
        torch.manual_seed(0)
        cast(nn.Module, module).eval()
        log_prob: Any = getattr(module, "log_prob_scaled", None)
        try:
            loss = float(module.batch_loss(rows) if log_prob is None else -log_prob(rows).mean())
        except (RuntimeError, ValueError, ArithmeticError):
            if strict:
                raise
            return math.nan
    if strict and not math.isfinite(loss):
        raise ValueError(
            f"the loss on {num_rows(rows)} rows is {loss}: the model has diverged, or a row lies outside it."
        )
    return loss if math.isfinite(loss) else math.nan


def _parameters(network: nn.Module) -> dict[str, Tensor]:
    return dict(network.named_parameters())
