"""The hot path of a flow: an ICNN's gradient and Hessian log-determinant, with a hand-written backward.

With a_l, s, J_l, lambda_l and mu_l as in ``ICNN.derivatives``, w_l = lambda_l s''(a_l), and all of them concatenated
over the units of all layers (H units):

    gradient = k x + a + mu A,    Hess = k I + J diag(w) J^T,    J of shape (N, D, H).

What has shape (N, H) is made for all rows at once. J takes one matrix product over n * D rows a layer, for n rows at a
time, so that everything as large as it stays in the processor's cache and memory is bounded.

Backward, with l the incoming gradient of the log-determinant and G = l Hess^-1 that of the Hessian: the adjoint of J
is dJ_l = 2 G J_l diag(w_l) + diag(s'_l) dJ_{l+1} T_l, that of w is diag(J^T G J), and the rest is the reverse of the
formulae above. All that needs J is linear in l, row by row. A mean or sum over the batch has the same l in every row,
so these sums are taken in the forward with l = 1, while J is in the cache, and only scaled in the backward; where l
differs between rows (a weighted loss), the backward makes J again.

Where each row has scales p, q of its own (``NetworkTensors``), s and its derivatives are p times the activation's and
A_l is A_l diag(q_l); the adjoints of p and q are read off where s', s'', s and J stand.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_lift.networks.activations import Activation
from lightning_lift.networks.tensors import NetworkTensors

Results = tuple[Tensor, Tensor]

_CACHE_BYTES = 1 << 20  # of J on one core: the second-level cache, measured to be flat within a factor 2
_DEVICE_BYTES = 1 << 28  # of J on an accelerator, where few large products are fastest
_BLOCK_BYTES = 1 << 27  # of one (N, H) tensor, where no backward follows


def gradient_logdet(
    activation: Activation,
    x: Tensor,
    tensors: NetworkTensors,
    plain: Callable[[Tensor, NetworkTensors], Results],
    chunk_size: int | None = None,
) -> Results:
    """Gradient (N, D) and log-determinant of the Hessian (N,), differentiable in ``x`` and all tensors.

    Args:
        activation: s, three times differentiable.
        x: points, shape (N, D).
        tensors: of the network.
        plain: the same two results by operations that autograd knows: they take over where a graph of the backward is
            asked for (``create_graph=True``).
        chunk_size: rows of J at a time; None for as many as fit the cache.
    """
    row_bytes = x.element_size() * sum(tensors.widths)
    if chunk_size is None:
        budget = _CACHE_BYTES * torch.get_num_threads() if x.device.type == "cpu" else _DEVICE_BYTES
        chunk_size = max(1, budget // (row_bytes * x.shape[1]))
    flat = tensors.flat()
    if torch.is_grad_enabled() and (x.requires_grad or any(tensor.requires_grad for tensor in flat)):
        gradient, logdet = _GradientLogdet.apply(activation, plain, chunk_size, x, *flat)  # type: ignore[no-untyped-call]
        return gradient, logdet
    block = max(1, _BLOCK_BYTES // row_bytes)
    blocks = zip(x.split(block), _join(NetworkTensors.of(flat)).split(block, len(x)), strict=True)
    done = [_forward(activation, rows, joined, chunk_size, for_backward=False) for rows, joined in blocks]
    return torch.cat([block.gradient for block in done]), torch.cat([block.logdet for block in done])


class _Joined(NamedTuple):
    """The tensors with the layers beside each other: H units."""

    strong_convexity: Tensor
    output_input_weight: Tensor
    output_weight: Tensor
    hidden_weights: Sequence[Tensor]
    input_weight: Tensor  # A^T, shape (D, H)
    bias: Tensor  # (H,) or (N, H)
    widths: list[int]
    unit_scales: Tensor | None  # p, (N, H)
    input_scales: Tensor | None  # q, (N, L, D)

    def split(self, size: int, rows: int) -> Iterator["_Joined"]:
        """The same for ``size`` of the rows at a time."""
        p, q = self.unit_scales, self.input_scales
        if p is None or q is None:
            return itertools.repeat(self, -(-rows // size) or 1)
        parts = zip(*(tensor.split(size) for tensor in (self.output_input_weight, self.bias, p, q)), strict=True)
        return (self._replace(output_input_weight=a, bias=c, unit_scales=p, input_scales=q) for a, c, p, q in parts)

    def scaled_inputs(self, v: Tensor) -> list[Tensor]:
        """q_l o v of each layer, shape (N, D) each."""
        if self.input_scales is None:
            return [v] * len(self.widths)
        return list((self.input_scales * v.unsqueeze(1)).unbind(1))

    def to_units(self, v: Tensor) -> Tensor:
        """A_l (q_l o v) of all layers, shape (N, H)."""
        if self.input_scales is None:
            return torch.mm(v, self.input_weight)
        parts = zip(self.scaled_inputs(v), self.input_weight.split(self.widths, 1), strict=True)
        return torch.cat([torch.mm(part, weight) for part, weight in parts], dim=1)

    def to_inputs(self, units: Tensor) -> tuple[Tensor, Tensor | None]:
        """The sum of q_l o A_l^T u_l, shape (N, D), and for its part in the adjoint of q all A_l^T u_l (N, L, D)."""
        if self.input_scales is None:
            return _product(self.input_weight, units), None
        parts = zip(units.split(self.widths, 1), self.input_weight.split(self.widths, 1), strict=True)
        products = torch.stack([torch.mm(part, weight.T) for part, weight in parts], dim=1)
        return (self.input_scales * products).sum(1), products

    def by_inputs(self, v: Tensor, units: Tensor) -> Tensor:
        """The adjoint of A^T of the products above: sums over rows of (q_l o v) u_l^T, shape (D, H)."""
        if self.input_scales is None:
            return torch.mm(v.T, units)
        parts = zip(self.scaled_inputs(v), units.split(self.widths, 1), strict=True)
        return torch.cat([torch.mm(part.T, unit) for part, unit in parts], dim=1)


def _join(tensors: NetworkTensors) -> _Joined:
    inputs = torch.cat([weight.T for weight in tensors.input_weights], dim=1)
    k, bias = torch.as_tensor(tensors.strong_convexity), torch.cat(list(tensors.biases), dim=-1)
    return _Joined(k, *tensors[1:4], inputs, bias, tensors.widths, tensors.unit_scales, tensors.input_scales)


class _Units(NamedTuple):
    """What has shape (n, H)."""

    value: Tensor  # z = s(a)
    first: Tensor  # s'(a)
    second: Tensor
    third: Tensor
    adjoint: Tensor  # lambda
    mu: Tensor
    plain: tuple[Tensor, Tensor, Tensor] | None  # value, first and second without p, where there is one


class _Curvature(NamedTuple):
    """What the backward needs of J: sums that are linear in the incoming gradient of the log-determinant."""

    weight: Tensor  # the adjoint of w, shape (N, H)
    first: Tensor  # half that of s', shape (N, H), zero in the last layer
    inputs: Tensor  # half that of A^T, shape (D, H)
    hidden: list[Tensor]  # half those of T_2, ..., T_L
    scales: Tensor | None  # half that of q, shape (N, L, D)

    def zeros(self) -> "_Curvature":
        weight, first, inputs = (torch.zeros_like(tensor) for tensor in self[:3])
        scales = None if self.scales is None else torch.zeros_like(self.scales)
        return _Curvature(weight, first, inputs, [torch.zeros_like(tensor) for tensor in self.hidden], scales)


def _units(activation: Activation, x: Tensor, tensors: _Joined) -> _Units:
    widths, hidden, scales = tensors.widths, tensors.hidden_weights, tensors.unit_scales
    pre = torch.addmm(tensors.bias, x, tensors.input_weight) if scales is None else tensors.to_units(x) + tensors.bias
    value, adjoint, mu = torch.empty_like(pre), torch.empty_like(pre), torch.empty_like(pre)
    pres, values = pre.split(widths, 1), value.split(widths, 1)
    parts = () if scales is None else scales.split(widths, 1)
    for index, part in enumerate(pres):
        if index:
            below = values[index - 1] if scales is None else values[index - 1] * parts[index - 1]
            part.addmm_(below, hidden[index - 1].T)
        activation.value_into(part, values[index])
    first, second, third = activation.derivatives(pre)
    plain = None
    if scales is not None:
        plain = (value, first, second)
        value, first, second, third = value * scales, first * scales, second * scales, third.mul_(scales)
    adjoints, mus, firsts = adjoint.split(widths, 1), mu.split(widths, 1), first.split(widths, 1)
    adjoints[-1].copy_(tensors.output_weight)
    for index in reversed(range(len(widths))):
        torch.mul(adjoints[index], firsts[index], out=mus[index])
        if index:
            torch.mm(mus[index], hidden[index - 1], out=adjoints[index - 1])
    return _Units(value, first, second, third, adjoint, mu, plain)


class _Room(NamedTuple):
    """Memory for J of n rows and three more tensors of its shape (n, D, H), as a whole and by layer."""

    cubes: list[Tensor]  # (n, D, H)
    layers: list[Sequence[Tensor]]  # (n, D, h_l)
    flat: list[Sequence[Tensor]]  # (n D, h_l)

    @classmethod
    def of(cls, buffers: Sequence[Tensor], n: int, widths: list[int]) -> "_Room":
        cubes = [buffer[:n] for buffer in buffers]
        flat = [cube.view(-1, cube.shape[2]).split(widths, 1) for cube in cubes]
        return cls(cubes, [cube.split(widths, 2) for cube in cubes], flat)


class _Jacobians:
    """J of some rows after others, always in the same memory.

    Args:
        rows: most rows at a time.
        tensors: of the network.
    """

    def __init__(self, rows: int, tensors: _Joined) -> None:
        self._inputs, self._widths = tensors.input_weight, tensors.widths
        self._hidden = [(weight, weight.T) for weight in tensors.hidden_weights]
        self._inner = slice(0, sum(self._widths[:-1]))
        self._buffers = [self._inputs.new_empty(rows, *self._inputs.shape) for _ in range(4)]
        self._room = _Room.of(self._buffers, rows, self._widths)

    def fill(self, first: Tensor, input_scales: Tensor | None) -> tuple[Tensor, Tensor]:
        """J for rows with these s' (n, H) and q (n, L, D), and room of its shape."""
        if len(first) != len(self._room.cubes[0]):
            self._room = _Room.of(self._buffers, len(first), self._widths)
        self._slopes = first.unsqueeze(1).split(self._widths, 2)
        (jacobian, _, room, _), (parts, scaled, _, _), (flat, flat_scaled, _, _) = self._room
        self._scales = None if input_scales is None else input_scales.unsqueeze(3).unbind(1)  # (n, D, 1) a layer
        if self._scales is None:
            jacobian.copy_(self._inputs)
        else:
            for part, inputs, scale in zip(parts, self._inputs.split(self._widths, 1), self._scales, strict=True):
                torch.mul(inputs, scale, out=part)
        for index, (_, transposed) in enumerate(self._hidden):
            torch.mul(parts[index], self._slopes[index], out=scaled[index])
            flat[index + 1].addmm_(flat_scaled[index], transposed)
        return jacobian, room

    def add_curvature_(self, to: _Curvature, rows: slice, by_hessian: Tensor, weight: Tensor) -> None:
        """Add what the rows of the last ``fill`` give, for this gradient (n, D, D) of their Hessians and w (n, H)."""
        (jacobian, _, adjoint, product), (_, _, adjoints, products), (_, scaled, flat, flat_product) = self._room
        torch.bmm(by_hessian, jacobian, out=adjoint)
        torch.sum(torch.mul(adjoint, jacobian, out=product), 1, out=to.weight[rows])
        adjoint.mul_(weight.unsqueeze(1))
        for index in reversed(range(len(self._hidden))):
            to.hidden[index].addmm_(flat[index + 1].T, scaled[index])
            torch.mm(flat[index + 1], self._hidden[index][0], out=flat_product[index])
            adjoints[index].addcmul_(products[index], self._slopes[index])
        inner = product[:, :, self._inner].mul_(jacobian[:, :, self._inner])
        torch.sum(inner, 1, out=to.first[rows, self._inner])
        if self._scales is not None and to.scales is not None:
            torch.mul(adjoint, self._inputs, out=product)
            for index, scale in enumerate(self._scales):
                torch.sum(products[index], 2, out=to.scales[rows, index])
                adjoints[index].mul_(scale)
        to.inputs.add_(adjoint.sum(0))


def _empty_curvature(x: Tensor, tensors: _Joined) -> _Curvature:
    """Room for the sums: row by row, and zero where rows will be added up."""
    weight, first = x.new_empty(2, len(x), sum(tensors.widths))
    first[:, -tensors.widths[-1] :].zero_()
    hidden = [torch.zeros_like(weight) for weight in tensors.hidden_weights]
    scales = None if tensors.input_scales is None else torch.empty_like(tensors.input_scales)
    return _Curvature(weight, first, torch.zeros_like(tensors.input_weight), hidden, scales)


class _Forward(NamedTuple):
    gradient: Tensor
    logdet: Tensor
    inverse: Tensor  # of the Hessians
    units: _Units
    curvature: _Curvature


def _forward(activation: Activation, x: Tensor, tensors: _Joined, chunk: int, for_backward: bool) -> _Forward:
    n, dim = x.shape
    units = _units(activation, x, tensors)
    gradient = torch.addcmul(tensors.output_input_weight, x, tensors.strong_convexity)
    gradient.add_(tensors.to_inputs(units.mu)[0])
    weight = units.adjoint * units.second
    floor = tensors.strong_convexity * torch.eye(dim, dtype=x.dtype, device=x.device)
    logdet, inverses = x.new_empty(n), [x.new_empty(0, dim, dim)]
    curvature = _empty_curvature(x, tensors)
    jacobians, scales = _Jacobians(min(chunk, n), tensors), tensors.input_scales
    for start in range(0, n, chunk):
        rows = slice(start, start + chunk)
        jacobian, room = jacobians.fill(units.first[rows], scales if scales is None else scales[rows])
        torch.mul(jacobian, weight[rows].unsqueeze(1), out=room)
        factor, info = torch.linalg.cholesky_ex(torch.baddbmm(floor, room, jacobian.transpose(1, 2)))
        factor.masked_fill_((info != 0).view(-1, 1, 1), torch.nan)
        torch.sum(factor.diagonal(dim1=1, dim2=2).log(), 1, out=logdet[rows])
        if for_backward:
            inverses.append(torch.cholesky_inverse(factor))
            jacobians.add_curvature_(curvature, rows, inverses[-1], weight[rows])
    return _Forward(gradient, logdet.mul_(2.0), torch.cat(inverses), units, curvature)


def _product(matrix: Tensor, rows: Tensor) -> Tensor:
    """rows @ matrix.T for a wide matrix (D, H): this way round the product is up to six times as fast."""
    return torch.mm(matrix, rows.T).T


class _GradientLogdet(torch.autograd.Function):
    """``gradient_logdet`` for autograd."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, plain: Any, chunk: int, x: Tensor, *flat: Tensor) -> Results:
        joined = _join(NetworkTensors.of(flat))
        out = _forward(activation, x, joined, chunk, for_backward=True)
        ctx.save_for_backward(x, *flat)
        # Neither inputs nor outputs: these need not pass through saved tensors, each of which costs microseconds.
        ctx.plain, ctx.chunk, ctx.joined, ctx.made = plain, chunk, joined, out[2:]
        return out.gradient, out.logdet

    @staticmethod
    def backward(ctx: Any, by_gradient: Tensor, by_logdet: Tensor) -> tuple[Tensor | None, ...]:
        x, *flat = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        with torch.autocast(device_type=x.device.type, enabled=False):
            if torch.is_grad_enabled():
                return (None, None, None, *_plain_backward(ctx.plain, x, flat, wanted, by_gradient, by_logdet))
            inverse, units, curvature = ctx.made
            scale = _common_value(by_logdet)
            if scale is None:
                scale, inverse = 1.0, inverse * by_logdet.view(-1, 1, 1)
                curvature = _curvature(x, ctx.joined, units, ctx.chunk, inverse)
            elif scale == 0.0:  # not multiplied: a log-determinant that nobody reads may be NaN
                inverse, curvature = torch.zeros_like(inverse), curvature.zeros()
            return (None, None, None, *_backward(x, ctx.joined, units, curvature, inverse, scale, by_gradient, wanted))


def _common_value(values: Tensor) -> float | None:
    """The number that all ``values`` are (0 where there are none), or None."""
    if not len(values):
        return 0.0
    return float(values[0]) if bool((values == values[0]).all()) else None


def _curvature(x: Tensor, tensors: _Joined, units: _Units, chunk: int, by_hessian: Tensor) -> _Curvature:
    curvature, weight = _empty_curvature(x, tensors), units.adjoint * units.second
    jacobians, scales = _Jacobians(min(chunk, len(x)), tensors), tensors.input_scales
    for start in range(0, len(x), chunk):
        rows = slice(start, start + chunk)
        jacobians.fill(units.first[rows], scales if scales is None else scales[rows])
        jacobians.add_curvature_(curvature, rows, by_hessian[rows], weight[rows])
    return curvature


def _backward(
    x: Tensor,
    tensors: _Joined,
    units: _Units,
    curvature: _Curvature,
    inverse: Tensor,
    scale: float,
    by_gradient: Tensor,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of x and ``NetworkTensors.flat``; ``scale`` is the common gradient of the log-determinants."""
    widths, hidden = tensors.widths, tensors.hidden_weights
    by_weight = curvature.weight * scale
    by_mu = tensors.to_units(by_gradient)
    by_adjoint = by_weight * units.second
    mus, by_mus, by_adjoints = (tensor.split(widths, 1) for tensor in (units.mu, by_mu, by_adjoint))
    firsts, values = units.first.split(widths, 1), units.value.split(widths, 1)
    for index in range(len(widths)):
        if index:
            by_mus[index].addmm_(by_adjoints[index - 1], hidden[index - 1].T)
        by_adjoints[index].addcmul_(by_mus[index], firsts[index])
    by_first = torch.mul(curvature.first, 2.0 * scale).addcmul_(by_mu, units.adjoint)
    by_second = by_weight.mul_(units.adjoint)
    by_pre = torch.mul(by_first, units.second).addcmul_(by_second, units.third)
    by_units = None  # the adjoint of p
    if units.plain is not None:
        by_units = by_first.mul_(units.plain[1]).addcmul_(by_second, units.plain[2])
    by_pres = by_pre.split(widths, 1)
    by_hidden: list[Tensor | None] = [None for _ in hidden]
    for index in reversed(range(len(hidden))):
        if wanted[4 + index]:
            by_t = torch.addmm(curvature.hidden[index], mus[index + 1].T, by_adjoints[index], beta=2.0 * scale)
            by_hidden[index] = by_t.addmm_(by_pres[index + 1].T, values[index])
        by_value = torch.mm(by_pres[index + 1], hidden[index])
        by_pres[index].addcmul_(by_value, firsts[index])
        if by_units is not None and units.plain is not None:
            by_units.split(widths, 1)[index].addcmul_(by_value, units.plain[0].split(widths, 1)[index])
    by_inputs = torch.mul(curvature.inputs, 2.0 * scale)
    by_inputs.add_(tensors.by_inputs(x, by_pre)).add_(tensors.by_inputs(by_gradient, units.mu))
    by_x = by_k = products = None
    if wanted[0] or by_units is not None:
        through_pre, products = tensors.to_inputs(by_pre)
        by_x = torch.addcmul(through_pre, by_gradient, tensors.strong_convexity)
    if wanted[1]:
        by_k = (by_gradient * x).sum() + scale * inverse.diagonal(dim1=1, dim2=2).sum()
    by_input_weights = by_inputs.T.contiguous().split(widths)
    by_rows: list[Tensor | None] = []
    through_mu = None if products is None else tensors.to_inputs(units.mu)[1]
    if products is not None and through_mu is not None and curvature.scales is not None:
        by_q = torch.mul(curvature.scales, 2.0 * scale).addcmul_(products, x.unsqueeze(1))
        by_rows = [by_units, by_q.addcmul_(through_mu, by_gradient.unsqueeze(1))]
        by_a, by_biases = by_gradient, by_pre.split(widths, 1)
    else:
        by_a, by_biases = by_gradient.sum(0), by_pre.sum(0).split(widths)
    by_t = by_adjoints[-1].sum(0)
    return [by_x, by_k, by_a, by_t, *by_hidden, *by_input_weights, *by_biases, *by_rows]


def _plain_backward(
    plain: Callable[[Tensor, NetworkTensors], Results],
    x: Tensor,
    flat: Sequence[Tensor],
    wanted: Sequence[bool],
    by_gradient: Tensor,
    by_logdet: Tensor,
) -> list[Tensor | None]:
    """The same gradients with a graph of their own, by autograd."""
    asked = [tensor for tensor, want in zip((x, *flat), wanted, strict=True) if want]
    results = plain(x, NetworkTensors.of(flat))
    found = iter(torch.autograd.grad(results, asked, (by_gradient, by_logdet), create_graph=True, allow_unused=True))
    return [next(found) if want else None for want in wanted]
