"""The first stage of a step of several seeds: the weights of each under its own parameterization."""

import copy
import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lightning_lift.compare.stacking import SeedStack, said_plainly
from lightning_lift.modules.base import ConvexModule
from lightning_lift.parameterizations import ADMM, DirectSoftplus, Lift, Parameterization, ProjectedGradient
from lightning_lift.parameterizations.emissions import DenseEmission

PREFIX = "parameterization."
_STATELESS_WEIGHTS = (Parameterization.weights, Lift.weights)
_STATELESS_LATENTS = (ProjectedGradient.latent, DirectSoftplus.latent, ADMM.latent, Lift.latent)


class StackedWeights:
    """The weights of every seed under its own parameterization.

    All at once where a parameterization is a function of its parameters and the batch; seed by seed where it holds
    something else (an earlier batch, its own noise), which vmap cannot see.

    Args:
        stack: of modules with a parameterization.
    """

    def __init__(self, stack: SeedStack) -> None:
        self._stack = stack
        self._own = [cast(ConvexModule, module).parameterization for module in stack.modules]
        first = self._own[0]
        self._leaves = {n.removeprefix(PREFIX): t for n, t in stack.leaves.items() if n.startswith(PREFIX)}
        self._core = _Weights(first) if is_stateless(first) else None
        self._has_penalty = type(first).penalty is not Parameterization.penalty

    def __call__(self, batch: Tensor) -> dict[str, Tensor]:
        """The weights by name, each (S, ...), with their graph.

        Args:
            batch: shape (S, N, D).
        """
        if self._core is None:
            each = [own.weights(rows) for own, rows in zip(self._own, batch, strict=True)]
            return {name: torch.stack([weights[name] for weights in each]) for name in each[0]}
        core = self._core

        def one(leaves: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
            own: dict[str, Tensor] = functional_call(core, leaves, (rows,))
            return own

        with said_plainly():
            return vmap(one)({f"own.{name}": leaf for name, leaf in self._leaves.items()}, batch)

    def backward(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """From the gradients of the weights to those of the parameters, with the parameterizations' own penalties.

        Args:
            weights: what a call gave.
            gradients: of the same shapes.
        """
        if self._core is None or self._has_penalty:
            for leaf in self._leaves.values():
                leaf.grad = torch.zeros_like(leaf)
            self._stack.lend_gradients()
        torch.autograd.backward(weights, gradients)
        if self._has_penalty:
            for own in self._own:
                penalty = own.penalty()
                if penalty is not None:
                    penalty.backward()


def is_stateless(parameterization: Parameterization) -> bool:
    """Whether its weights are a function of its parameters and the batch alone, as far as this package knows.

    Args:
        parameterization: of any class.
    """
    kind = type(parameterization)
    if kind.weights not in _STATELESS_WEIGHTS or kind.latent not in _STATELESS_LATENTS:
        return False
    own = ("code", "_training_summary", "_latent_of")
    return not isinstance(parameterization, Lift) or all(getattr(kind, name) is getattr(Lift, name) for name in own)


class _Weights(nn.Module):
    def __init__(self, own: Parameterization) -> None:
        super().__init__()
        self.own = copy.deepcopy(own)
        for part in self.own.modules():
            if type(part) is DenseEmission:
                # F.linear under vmap gives the largest gradient of all in a layout that is copied once more.
                part.forward = functools.partial(_emitted, part)  # type: ignore[method-assign]

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        return self.own.weights(batch)


def _emitted(emission: DenseEmission, code: Tensor) -> Tensor:
    emitted: Tensor = _Product.apply(emission.weight, code)  # type: ignore[no-untyped-call]
    return emitted


class _Product(torch.autograd.Function):
    """A matrix (d, F) times a vector (F,), each product in the order that is fastest for many of them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, vector: Tensor) -> Tensor:
        return F.linear(vector, matrix)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, by_product: Tensor) -> tuple[Tensor, Tensor]:
        matrix, vector = ctx.saved_tensors
        return by_product.unsqueeze(-1) * vector, F.linear(by_product, matrix.t())
