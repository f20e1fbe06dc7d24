"""What defines an ICNN once everything is folded in, with the scales of each row where it is bound to a context."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor


class NetworkTensors(NamedTuple):
    """What defines an ICNN of L layers: fan-ins, ActNorms and learned scales are folded in.

    A partially convex network is one for each row: z_{l+1} = s(T_l (p_l o z_l) + A_l (q_l o x) + c_l), and p_L o z_L
    goes into the output. Then p, q, c_l, a and the intercept have one entry a row. As p is part of the activation of
    the units that it scales, s, s', s'' and s''' are what it is multiplied into, and nothing else sees it.

    Attributes:
        strong_convexity: k; a tensor where gradients go through it, of shape (D,) where it leaves inputs out.
        output_input_weight: a, shape (D,) or (N, D).
        output_weight: t, shape (h_L,).
        hidden_weights: T_2, ..., T_L, shapes (h_l, h_{l-1}).
        input_weights: A_1, ..., A_L, shapes (h_l, D).
        biases: c_1, ..., c_L, shapes (h_l,) or (N, h_l).
        output_bias: the intercept, a scalar or shape (N,); no derivative sees it.
        unit_scales: p of all layers' units, shape (N, h_1 + ... + h_L); None for 1.
        input_scales: q of each layer, shape (N, L, D); None for 1, exactly where ``unit_scales`` is.
    """

    strong_convexity: Tensor | float
    output_input_weight: Tensor
    output_weight: Tensor
    hidden_weights: Sequence[Tensor]
    input_weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    output_bias: Tensor | float = 0.0
    unit_scales: Tensor | None = None
    input_scales: Tensor | None = None

    def layers(self) -> list[tuple[Tensor | None, Tensor, Tensor]]:
        """T (None first), A and c of each layer."""
        return list(zip((None, *self.hidden_weights), self.input_weights, self.biases, strict=True))

    @property
    def widths(self) -> list[int]:
        """Units of each layer."""
        return [weight.shape[0] for weight in self.input_weights]

    def scale_units(self, part: Tensor, index: int) -> Tensor:
        """What the units of this layer give (N, h_l), times p."""
        if self.unit_scales is None:
            return part
        scale: Tensor = self.unit_scales.split(self.widths, 1)[index]
        return part * scale

    def scale_inputs(self, v: Tensor, index: int) -> Tensor:
        """What goes into this layer, or comes back from it (N, D), times q."""
        return v if self.input_scales is None else v * self.input_scales[:, index]

    def flat(self) -> tuple[Tensor, ...]:
        """All that derivatives depend on, in this order."""
        k = torch.as_tensor(self.strong_convexity, dtype=self.output_weight.dtype, device=self.output_weight.device)
        rows = () if self.unit_scales is None or self.input_scales is None else (self.unit_scales, self.input_scales)
        return (k, *self[1:3], *self.hidden_weights, *self.input_weights, *self.biases, *rows)

    @classmethod
    def of(cls, flat: Sequence[Tensor]) -> Self:
        """The inverse of ``flat``."""
        layers, rows = divmod(len(flat) - 2, 3)  # k, a, t and L - 1, L and L tensors; p and q where there are any
        (k, output_inputs, output), rest = flat[:3], flat[3:]
        parts = (rest[: layers - 1], rest[layers - 1 : 2 * layers - 1], rest[2 * layers - 1 : 3 * layers - 1])
        return cls(k, output_inputs, output, *parts, 0.0, *(rest[-2:] if rows else ()))

    def folded(self) -> Self:
        """The same function where p and q have one row: that row's own ICNN, for any number of points."""
        if self.unit_scales is None or self.input_scales is None:
            return self
        scales, inputs = self.unit_scales[0].split(self.widths), self.input_scales[0]
        return self._replace(
            output_input_weight=self.output_input_weight[0],
            output_weight=self.output_weight * scales[-1],
            hidden_weights=[weight * p for weight, p in zip(self.hidden_weights, scales[:-1], strict=True)],
            input_weights=[weight * q for weight, q in zip(self.input_weights, inputs, strict=True)],
            biases=[bias[0] for bias in self.biases],
            unit_scales=None,
            input_scales=None,
        )
