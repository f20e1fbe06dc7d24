"""A step of several seeds: their weights, then the task's own formula on them under ``torch.func.vmap``."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.func import functional_call, vmap

from lightning_lift.compare.stacked_weights import PREFIX, StackedWeights
from lightning_lift.compare.stacking import SeedStack, said_plainly
from lightning_lift.modules.base import ConvexModule


class _Given(nn.Module):
    """Stands in the place of a parameterization, with the weights of the call at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: Mapping[str, Tensor] = {}

    def weights(self, batch: Tensor | None = None, latent: Tensor | None = None) -> dict[str, Tensor]:
        return dict(self.tensors)


class Core(nn.Module):
    """The task as a function of weights and rows, for ``functional_call``.

    It holds a stand-in for the module: a shallow copy whose network is a copy and whose parameterization is ``_Given``.
    """

    def __init__(self, module: ConvexModule) -> None:
        super().__init__()
        stand_in = copy.copy(module)
        stand_in._modules = dict(module._modules)
        stand_in._modules["network"] = copy.deepcopy(module.network)
        self._given = _Given()
        stand_in._modules["parameterization"] = self._given
        self.module = stand_in

    def forward(self, weights: dict[str, Tensor], *inputs: Tensor | None) -> Any:
        """What the task gives under these weights."""
        self._given.tensors = weights
        try:
            return self.results(*inputs)
        finally:
            self._given.tensors = {}  # of a transform that is over

    def results(self, *inputs: Any) -> Any:
        """What the task gives, here its ``batch_loss``; ``self.module`` has the weights."""
        return self.module.batch_loss(*inputs)


class StackedLoss:
    """The losses of the seeds of a stack, and their gradients.

    In two stages: the parameterizations' weights, then the task on them. What a seed has to repeat because its window
    has moved is the second stage alone.

    Args:
        stack: of modules in training mode.
        core: of the second stage.

    Attributes:
        errors: why a seed failed, by its index.
        free: the stacked parameters that are the network's own, by name.
    """

    def __init__(self, stack: SeedStack, core: Core) -> None:
        self.stack = stack
        self.errors: dict[int, str] = {}
        self._core = core
        self._weights = StackedWeights(stack)
        self.free = {name: leaf for name, leaf in stack.leaves.items() if not name.startswith(PREFIX)}

    def backward(self, batch: Tensor, alive: Sequence[bool]) -> Tensor:
        """Puts each seed's gradient into its slice of the leaves' ``grad``, which must be None before.

        A seed that fails (its density has no finite mass) is named in ``errors``, with the reason.

        Args:
            batch: shape (S, N, D).
            alive: the seeds that still train.

        Returns:
            The losses, without graph and without a parameterization's own penalty, shape (S,).
        """
        weights = self._weights(batch)
        given = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        losses = self.second_stage(given, batch, alive)
        used = [name for name, tensor in given.items() if tensor.grad is not None]
        self._weights.backward([weights[name] for name in used], [cast(Tensor, given[name].grad) for name in used])
        return losses

    def second_stage(self, given: Mapping[str, Tensor], batch: Tensor, alive: Sequence[bool]) -> Tensor:
        """Losses (S,) of the weights handed in; puts gradients on them and on the network's own leaves."""
        losses: Tensor = self.call({**self.free}, given, batch)
        losses.sum().backward()
        return losses.detach()

    def call(self, free: Mapping[str, Tensor], given: Mapping[str, Tensor], *inputs: Tensor | None) -> Any:
        """What the core gives for each seed, stacked.

        Args:
            free: the network's own parameters, (S, ...) each.
            given: the weights, likewise.
            inputs: of the core, each (S, ...) or None for all seeds.
        """
        core = self._core

        def one(own: dict[str, Tensor], weights: dict[str, Tensor], *rest: Tensor | None) -> Any:
            return functional_call(core, own, (weights, *rest))

        renamed = {f"module.{name}": leaf for name, leaf in free.items()}
        dims = (0 if renamed else None, 0, *(None if tensor is None else 0 for tensor in inputs))
        with said_plainly():
            return vmap(one, in_dims=dims)(renamed, dict(given), *inputs)
