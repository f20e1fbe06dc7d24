"""The partially input-convex neural network of Amos, Xu & Kolter (ICML 2017): convex in x, anything in a context."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from lightning_lift.networks.activations import ActivationName
from lightning_lift.networks.base import check_points
from lightning_lift.networks.icnn import ICNN
from lightning_lift.networks.initialization import log_spaced_rows_
from lightning_lift.networks.sweep import walk
from lightning_lift.networks.tensors import NetworkTensors


@dataclass(frozen=True)
class Modulation:
    """What a context makes of the network: an ICNN for each of N contexts.

    Attributes:
        unit_scales: p of all layers' units, shape (N, H).
        input_scales: q of each layer, shape (N, L, D).
        biases: added to those of all layers' units, shape (N, H).
        slopes: added to a, shape (N, D).
        intercepts: shape (N,).
    """

    unit_scales: Tensor
    input_scales: Tensor
    biases: Tensor
    slopes: Tensor
    intercepts: Tensor

    def __len__(self) -> int:
        return len(self.intercepts)

    def __getitem__(self, rows: Tensor | slice) -> "Modulation":
        return Modulation(*(getattr(self, name)[rows] for name in self.__annotations__))

    def to(self, dtype: torch.dtype) -> "Modulation":
        """The same in another precision."""
        return Modulation(*(getattr(self, name).to(dtype) for name in self.__annotations__))


class Conditioner(nn.Module):
    """The path of the context: u_0 = (embedded) context, u_{i+1} = g(W u_i + b), and what each u_i scales and shifts.

    Args:
        dim: input dimension D of the convex network.
        widths: its units.
        context_shape: of one entry of the context.
        context_width: units of u_1, ..., u_L.
        dropout: probability, behind each of these layers.
        embedding: factory of a module from (N, *context_shape) to (N, ...), for images or sequences; None: flattened.
    """

    def __init__(
        self,
        dim: int,
        widths: Sequence[int],
        context_shape: tuple[int, ...],
        context_width: int,
        dropout: float,
        embedding: Callable[[], nn.Module] | None,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = None if embedding is None else embedding()
        features = math.prod(context_shape)
        if self.embedding is not None:
            with torch.no_grad():
                features = self.embedding.eval()(torch.zeros(1, *context_shape)).numel()
            self.embedding.train()
        sizes = [features] + [context_width] * len(widths)
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in itertools.pairwise(sizes))
        # of each u_i, one product: q and biases of the layer above, p of the units below; of the last, a and b
        self._splits = [[dim, above, below] for above, below in zip(widths, (0, *widths[:-1]), strict=True)]
        self._splits.append([dim, 1, widths[-1]])
        self.heads = nn.ModuleList()
        for index, (size, parts) in enumerate(zip(sizes, self._splits, strict=True)):
            last = index == len(widths)  # whose bias is the intercept's: alone it would have no gradient in a flow
            head = nn.Linear(size, sum(parts), bias=last)
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
            if not last:
                log_spaced_rows_(head.weight[dim : dim + parts[1]])
            self.heads.append(head)

    def forward(self, context: Tensor) -> tuple[Tensor, ...]:
        """The fields of a ``Modulation``, in its order: shapes (N, *context_shape) to (N, ...)."""
        weight = self.heads[0].weight
        assert isinstance(weight, Tensor)
        if context.is_floating_point() or self.embedding is None:
            context = context.to(weight.dtype)
        u = (context if self.embedding is None else self.embedding(context)).flatten(1)
        fields: tuple[list[Tensor], ...] = ([], [], [])
        for layer, head, sizes in zip((*self.layers, None), self.heads, self._splits, strict=True):
            for found, part in zip(fields, head(u).split(sizes, 1), strict=True):
                found.append(part)
            u = u if layer is None else self.dropout(F.silu(layer(u)))
        inputs, biases, scales = fields
        slopes, intercepts = inputs.pop(), biases.pop().squeeze(1)
        units, rows = _positive(torch.cat(scales, 1)), torch.stack(inputs, 1) + 1.0
        return units, rows, torch.cat(biases, 1), slopes, intercepts


class PICNN(ICNN):
    r"""Partially input-convex neural network: convex in x, any function of a context u.

    u_0 = u, u_{i+1} = g(W_i u_i + b_i), and with p_i = [1 + W^zu_i u_i]_+ and q_i = 1 + W^xu_i u_i
    z_{i+1} = s(T_i (z_i o p_i) + A_i (x o q_i) + W^u_i u_i + c_i),
    E(x; u) = t^T (z_L o p_L) + (a + W u_L)^T x + (k/2) |x|^2 + w^T u_L + b,
    with T_i >= 0, t >= 0 (Amos, Xu & Kolter, 2017, equation 3, where T, A and a take in the constant parts of the
    scales). Bound to a context it is an ICNN, with the closed forms of one.

    p, q and the slopes start at 1, 1 and a. [.]_+ is a softplus, scaled to be 1 at the start: a rectifier can switch
    units off for good. g is the SiLU. The rest starts as ``ICNN`` does.

    Args:
        dim: input dimension D.
        context_shape: of one entry of the context.
        widths: units of each hidden layer, first to last.
        context_width: units of each layer of the context's own path, which has as many.
        context_dropout: probability of dropout behind each of them: it holds overfitting, and no x is touched.
        embedding: factory of a module that makes features (N, ...) of contexts (N, *context_shape), such as images or
            sequences, before that path. None: they are flattened.
        activation: as for ``ICNN``.
        strong_convexity: as for ``ICNN``; the same for every context.
        increasing: as for ``ICNN``.
        decreasing: as for ``ICNN``.
        strong_convexity_start: as for ``ICNN``.

    Raises:
        ValueError: what ``ICNN`` refuses, or a context without numbers.

    Shapes: forward maps (N, D) and (N, *context_shape) or (1, *context_shape) to (N,).
    """

    def __init__(
        self,
        dim: int,
        context_shape: tuple[int, ...],
        widths: Sequence[int] = (64, 64, 64),
        context_width: int = 64,
        context_dropout: float = 0.0,
        embedding: Callable[[], nn.Module] | None = None,
        activation: ActivationName = "softplus",
        strong_convexity: float | Literal["learned", "learned_gain"] = "learned_gain",
        increasing: Sequence[int] = (),
        decreasing: Sequence[int] = (),
        strong_convexity_start: float = 1.0,
    ) -> None:
        named = {"increasing": increasing, "decreasing": decreasing, "strong_convexity_start": strong_convexity_start}
        super().__init__(dim, widths, activation, strong_convexity, **named)  # type: ignore[arg-type]
        self.context_shape = tuple(context_shape)
        if min(self.context_shape, default=0) < 1 or context_width < 1:
            raise ValueError(
                f"context_shape={self.context_shape}, context_width={context_width}: a PICNN needs at least one number "
                "of context and one unit for it; a network without context is an ICNN."
            )
        if not 0.0 <= context_dropout < 1.0:
            raise ValueError(f"context_dropout={context_dropout}: must be at least 0 and below 1.")
        self.conditioner = Conditioner(dim, widths, self.context_shape, context_width, context_dropout, embedding)

    def bind_context(self, context: Tensor, weights: Mapping[str, Tensor]) -> Modulation:
        """The scales and shifts that a context gives.

        Args:
            context: shape (N, *context_shape) or (1, *context_shape).
            weights: replacement tensors by parameter name.
        """
        start = "conditioner."
        own = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
        return Modulation(*functional_call(self.conditioner, own, (context,)))

    def forward(self, x: Tensor, context: Tensor | Modulation | None = None) -> Tensor:
        """The energy at each point.

        Args:
            x: points, shape (N, D).
            context: theirs, shape (N, *context_shape), or one for all of them, (1, *context_shape).

        Returns:
            Shape (N,).
        """
        check_points(x, self.dim)
        return walk(self.activation, x, self.tensors_at(x, {}, context))[0]

    def tensors_at(self, x: Tensor, weights: Mapping[str, Tensor], context: Any = None) -> NetworkTensors:
        """The effective tensors of every layer at the points' contexts; of one for all points, those of an ICNN.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            context: as ``bind_context`` gives it, or as it takes it.
        """
        bound = self.bind_context(context, weights) if isinstance(context, Tensor) else context
        # shape[0], not len: under torch.export the number of rows stays free
        if not isinstance(bound, Modulation) or bound.slopes.shape[0] not in (1, x.shape[0]):
            found = "none" if context is None else f"{len(context)}"
            raise ValueError(
                f"a PICNN needs a context with an entry for each of its {len(x)} points, or one for all: {found} given."
            )
        plain = self._tensors(weights)
        scales, slope = bound.input_scales, plain.output_input_weight + bound.slopes
        if self._monotone:  # what is nonnegative stays so
            monotone = torch.tensor([column in self._monotone for column in range(self.dim)], device=x.device)
            scales = torch.where(monotone, _positive(scales - 1.0), scales)
            slope = torch.where(monotone, plain.output_input_weight * _positive(bound.slopes), slope)
        biases = bound.biases.split(plain.widths, 1)
        tensors = plain._replace(
            output_input_weight=slope,
            biases=[bias + shift for bias, shift in zip(plain.biases, biases, strict=True)],
            output_bias=bound.intercepts,
            unit_scales=bound.unit_scales,
            input_scales=scales,
        )
        return tensors.folded() if bound.slopes.shape[0] < x.shape[0] else tensors


def _positive(raw: Tensor) -> Tensor:
    """1 at 0, increasing, positive."""
    return F.softplus(raw + math.log(math.expm1(1.0)))
