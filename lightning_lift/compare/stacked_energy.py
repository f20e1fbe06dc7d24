"""The losses of several energies: mean energy plus log Z by quadrature, each seed on a window of its own."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_lift.compare.stacked_loss import Core, StackedLoss
from lightning_lift.compare.stacking import NotVectorizable, SeedStack
from lightning_lift.compare.windows import StackedWindows
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.energy import LogConcaveEBM
from lightning_lift.networks.activations import Softplus
from lightning_lift.networks.base import ConvexNetwork
from lightning_lift.partition.quadrature import Quadrature


class EnergyLoss(StackedLoss):
    """Mean energy plus log Z by quadrature, each seed on a window of its own.

    Args:
        stack: of the energies.
        module: the first of them.

    Raises:
        NotVectorizable: a loss of its own, an estimator of log Z that is no quadrature, or supports of several kinds.
    """

    def __init__(self, stack: SeedStack, module: LogConcaveEBM) -> None:
        if type(module).loss is not LogConcaveEBM.loss or type(module).batch_loss is not ConvexModule.batch_loss:
            raise NotVectorizable(f"{type(module).__name__} has a loss of its own")
        partitions = [cast(LogConcaveEBM, other).partition for other in stack.modules]
        if type(module.partition) is not Quadrature:
            raise NotVectorizable(
                f"{type(module.partition).__name__} estimates log Z with random numbers or a state of its own"
            )
        super().__init__(stack, _EnergyCore(module))
        quadratures = [partition for partition in partitions if isinstance(partition, Quadrature)]
        if any(not torch.equal(other.open_sides, quadratures[0].open_sides) for other in quadratures):
            raise NotVectorizable("the seeds' data have supports of different kinds")
        self.windows = StackedWindows(quadratures, module.dim, next(module.parameters()))

    def second_stage(self, given: Mapping[str, Tensor], batch: Tensor, alive: Sequence[bool]) -> Tensor:
        """As said there; a seed whose window has moved is repeated."""
        windows = self.windows
        both = ({**self.free}, given)
        seeds = list(range(len(self.stack)))
        results = batch.new_zeros(len(seeds))
        for attempt in range(windows.max_moves):
            rows = torch.tensor(seeds)
            # Of the seeds that are repeated a copy: the gradients of the first pass may be infinite, and must not be
            # added to.
            own = both if attempt == 0 else tuple(_copies(leaves, rows) for leaves in both)
            inputs: tuple[Tensor | None, ...] = (batch, windows.points, windows.log_weights, windows.rays)
            if attempt:
                inputs = tuple(None if tensor is None else tensor[rows] for tensor in inputs)
            losses, energies, masses, *on_rays = self.call(*own, *inputs)
            moved = windows.follow(seeds, energies, masses, on_rays, alive)
            kept = [place for place, seed in enumerate(seeds) if seed not in moved]
            if kept:
                (losses[kept] if moved else losses).sum().backward()
            if attempt:
                for copied, leaves in zip(own, both, strict=True):
                    _hand_over(copied, leaves, kept, [seeds[place] for place in kept])
            results[rows] = losses.detach()
            if not moved:
                return results
            seeds = moved
        for seed in seeds:
            self.errors[seed] = windows.never_ends(seed)
        return results


class _EnergyCore(Core):
    def __init__(self, module: LogConcaveEBM) -> None:
        super().__init__(module)
        _faster_activations_(self.module)

    def results(self, batch: Tensor, points: Tensor, log_weights: Tensor, rays: Tensor | None) -> tuple[Tensor, ...]:
        potential = self.module.potential(batch)
        # One pass for grid and batch together.
        energies, of_batch = potential.value(torch.cat([points, batch])).split([len(points), len(batch)])
        log_partition = torch.logsumexp(log_weights - energies, 0)
        results = of_batch.mean() + log_partition, energies.detach(), log_partition.detach()
        if rays is None:
            return results
        with torch.no_grad():
            value, gradient = potential.value_gradient(rays)
        return *results, value, gradient


def _copies(leaves: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: leaf.detach()[rows].requires_grad_(leaf.requires_grad) for name, leaf in leaves.items()}


def _hand_over(own: Mapping[str, Tensor], leaves: Mapping[str, Tensor], places: list[int], seeds: list[int]) -> None:
    for name, leaf in leaves.items():
        gradient = own[name].grad
        if gradient is not None:
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            leaf.grad[seeds] = gradient[places]


class _FirstOrderSoftplus(Softplus):
    """log(1 + e^x) in one pass; its second derivative by autograd is wrong, and nothing here asks for it."""

    def value(self, x: Tensor) -> Tensor:
        return F.softplus(x, 1.0, 80.0)


def _faster_activations_(module: nn.Module) -> None:
    """Gives networks that are only differentiated once the softplus that takes one pass over memory."""
    for part in module.modules():
        if isinstance(part, ConvexNetwork) and type(getattr(part, "activation", None)) is Softplus:
            part.activation = _FirstOrderSoftplus()  # type: ignore[assignment]
