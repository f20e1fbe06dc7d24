"""The input-convex neural network of Amos, Xu & Kolter (ICML 2017), with closed-form derivatives."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_lift.networks.activations import ActivationName, make_activation
from lightning_lift.networks.base import (
    ConvexNetwork,
    Derivatives,
    check_chunk_size,
    check_points,
    cholesky_logdet,
)
from lightning_lift.networks.convex_layer import ConvexLayer, monotone_signs
from lightning_lift.networks.gradient_logdet import gradient_logdet
from lightning_lift.networks.hessian_vector import LayeredLinearization
from lightning_lift.networks.initialization import WeightInit, initialize_nonnegative_, log_spaced_rows_
from lightning_lift.networks.sweep import closed_form, sweep, walk
from lightning_lift.networks.tensors import NetworkTensors

_SCALE_GAIN = {"learned": 1.0, "learned_gain": 10.0}  # of the stored numbers behind k and the output scale
_SLOPE = 0.1  # of the output in an input that it is monotone in, at the start


class ICNN(ConvexNetwork):
    r"""Input-convex neural network with skip connections from the input to every layer.

    z_1 = s(A_0 x + c_0),  z_{l+1} = s(T_l z_l + A_l x + c_l),  E(x) = t^T z_L + a^T x + (k/2) |x|^2,
    with T_l >= 0, t >= 0 and s convex and non-decreasing (Amos, Xu & Kolter, 2017, equation 2).

    Args:
        dim: input dimension D.
        widths: units of each hidden layer, first to last.
        activation: ``softplus``, ``gaussian_softplus`` (x Phi(x) + phi(x)), or ``relu`` (no Hessians).
        strong_convexity: k, the coefficient of |x|^2 / 2; the Hessian's eigenvalues are at least k. ``learned``:
            F(x) = softplus(w1) E_0(x) + softplus(w0) |x|^2 / 2 with E_0 the network without its quadratic term and
            free scalars w1, w0 (Huang et al., Convex potential flows, 2021), both factors 1 at the start.
            ``learned_gain``: the same with softplus(10 w), whose scalars keep up with the weights under Adam.
        divide_by_fan_in: divide T_l and t by the number of units they sum over inside the layer, so that the stored
            weights are of order one at any width.
        weight_init: start of the effective T_l and t. ``scaled``: each weight weight_init_value / fan_in, with A_l, a
            and c_l to match, for any width, depth and dimension (below). ``folded_normal``: the lift
            paper's, mean 1/sqrt(fan_in). ``principled``: Hoedt & Klambauer (2023), with its bias. ``constant``: as
            ``scaled``, the rest as for ``folded_normal``.
        weight_init_value: only for ``scaled`` and ``constant``: the sum of the weights of one output at the start.
        free_weight_std: standard deviation of A_l and a at the start; None for what belongs to ``weight_init``.
        bias_std: standard deviation of c_l at the start; None for what belongs to ``weight_init``.
        actnorm: an ActNorm before each activation; ``initialize_actnorm_`` starts them from data.
        intercept: add a free constant to E, for tasks that fit a value: the rest of an ICNN has none. A density's
            normalisation and a flow's gradient do not see it.
        increasing: positions of inputs that E never falls in: their columns of A_l and a are nonnegative, and the
            quadratic term leaves them out.
        decreasing: positions of inputs that E never rises in.
        strong_convexity_start: k at the start where it is learned. A regression takes a small one: |x|^2 / 2 is of the
            size of D, and shrinking it would shrink the output scale, and with it every gradient, at the same time.
        output_scale_start: factor of E_0 at the start where it is learned. A transport map takes a small one, and with
            it starts at the identity.

    Raises:
        ValueError: a width or dimension below 1, no hidden layer, a negative k or spread, an unknown name, or a
            position that is none or is named twice.

    The scaled start (ours) is for inputs of mean 0 and variance 1. T_l and t are constant with sum c = log 2 over the
    units of one output, so z passes on with a gain below c at any width and the units' common part settles at any
    depth. Rows of A_l have log-spaced norms (``log_spaced_rows_``) and c_l ~ N(0, 1), which spread the units over
    places and slopes; a = 0. Per layer, over units and x ~ N(0, I_D): Var(A x + c) = 1 + 109 / D. For other
    starts A_l and a are Xavier uniform, and c_l is 0 or the bias of the principled start.

    Shapes: forward maps (N, D) to (N,).
    """

    def __init__(
        self,
        dim: int,
        widths: Sequence[int] = (64, 64, 64),
        activation: ActivationName = "softplus",
        strong_convexity: float | Literal["learned", "learned_gain"] = "learned_gain",
        divide_by_fan_in: bool = True,
        weight_init: WeightInit = "scaled",
        weight_init_value: float = math.log(2.0),
        free_weight_std: float | None = None,
        bias_std: float | None = None,
        actnorm: bool = False,
        intercept: bool = False,
        increasing: Sequence[int] = (),
        decreasing: Sequence[int] = (),
        strong_convexity_start: float = 1.0,
        output_scale_start: float = 1.0,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim={dim}: an ICNN needs at least one input.")
        if not widths or min(widths) < 1:
            raise ValueError(f"widths={list(widths)}: give at least one hidden layer, each of at least one unit.")
        if isinstance(strong_convexity, str):
            if strong_convexity not in _SCALE_GAIN:
                known = ", ".join(map(repr, _SCALE_GAIN))
                raise ValueError(f"strong_convexity={strong_convexity!r}: give a number >= 0, or one of {known}.")
        elif not (strong_convexity >= 0.0 and math.isfinite(strong_convexity)):
            raise ValueError(f"strong_convexity={strong_convexity}: must be finite and not negative.")
        starts = {"output_scale_start": output_scale_start, "strong_convexity_start": strong_convexity_start}
        for name, start in starts.items():
            if not start > 0.0:
                raise ValueError(f"{name}={start}: must be positive.")
        for name, spread in (("free_weight_std", free_weight_std), ("bias_std", bias_std)):
            if spread is not None and not spread >= 0.0:
                raise ValueError(f"{name}={spread}: a standard deviation cannot be negative.")
        self.dim = dim
        self.activation = make_activation(activation)
        self.twice_differentiable = self.activation.twice_differentiable
        self.divide_by_fan_in = divide_by_fan_in
        self.actnorm = actnorm
        self._monotone = monotone_signs(dim, increasing, decreasing)
        num_monotone = len(self._monotone)
        self.layers = nn.ModuleList(
            ConvexLayer(dim - num_monotone, fan_in, width, actnorm, num_monotone)
            for fan_in, width in zip((0, *widths[:-1]), widths, strict=True)
        )
        self.output_weight = nn.Parameter(torch.empty(widths[-1]))
        self.output_input_weight = nn.Parameter(torch.empty(dim - num_monotone))
        self.output_monotone_weight = nn.Parameter(torch.full((num_monotone,), _SLOPE)) if num_monotone else None
        self.intercept = intercept
        self.output_bias = nn.Parameter(torch.zeros(())) if intercept else None
        self.learned_scales = isinstance(strong_convexity, str)
        if isinstance(strong_convexity, str):
            self._strong_convexity, self._scale_gain = 0.0, _SCALE_GAIN[strong_convexity]
            raw = (torch.tensor(math.log(math.expm1(start)) / self._scale_gain) for start in starts.values())
            self.raw_output_scale, self.raw_strong_convexity = map(nn.Parameter, raw)
        else:
            self._strong_convexity = float(strong_convexity)
        self._initialize(weight_init, weight_init_value, free_weight_std, bias_std)

    @property
    def strong_convexity(self) -> float:
        """k, the smallest eigenvalue that the Hessian can have; 0 where a learned k was taken over (emitted)."""
        if self._monotone:
            return 0.0
        if not self.learned_scales:
            return self._strong_convexity
        raw: Tensor | None = self.raw_strong_convexity
        return 0.0 if raw is None else float(_softplus(self._scale_gain * raw.detach()))

    def _initialize(self, how: WeightInit, value: float, free_std: float | None, bias_std: float | None) -> None:
        if bias_std is None:
            bias_std = 1.0 if how == "scaled" else 0.0
        with torch.no_grad():
            for layer in self._layers():
                bias = 0.0
                if layer.hidden_weight is not None:
                    fan_in = layer.hidden_weight.shape[1]
                    bias = initialize_nonnegative_(layer.hidden_weight, fan_in, how, value)
                    layer.hidden_weight.mul_(self._stored_scale(fan_in))
                inputs = torch.empty(len(layer.bias), self.dim)
                self._initialize_free(inputs, how, free_std)
                free, monotone = self._columns()
                layer.input_weight.copy_(inputs[:, free])
                if layer.monotone_weight is not None:
                    layer.monotone_weight.copy_(inputs[:, monotone].abs())
                layer.bias.normal_(bias, bias_std)
            fan_in = self.output_weight.shape[0]
            initialize_nonnegative_(self.output_weight, fan_in, how, value)
            self.output_weight.mul_(self._stored_scale(fan_in))
            if how == "scaled" and free_std is None:
                self.output_input_weight.zero_()
            else:
                self._initialize_free(self.output_input_weight.unsqueeze(0), how, free_std)

    @staticmethod
    def _initialize_free(weight: Tensor, how: WeightInit, std: float | None) -> None:
        if std is not None:
            weight.normal_(0.0, std)
        elif how == "scaled":
            log_spaced_rows_(weight)
        else:
            nn.init.xavier_uniform_(weight)

    def _layers(self) -> list[ConvexLayer]:
        return [layer for layer in self.layers if isinstance(layer, ConvexLayer)]

    def _stored_scale(self, fan_in: int) -> float:
        """Stored weight over effective weight."""
        return float(fan_in) if self.divide_by_fan_in else 1.0

    def nonnegative_names(self) -> tuple[str, ...]:
        """T_1, ..., T_{L-1} and t; behind them the columns of A_l and a for inputs that E is monotone in."""
        names = (*(f"layers.{i}.hidden_weight" for i in range(1, len(self.layers))), "output_weight")
        if not self._monotone:
            return names
        return (*names, *(f"layers.{i}.monotone_weight" for i in range(len(self.layers))), "output_monotone_weight")

    def _columns(self) -> tuple[list[int], list[int]]:
        """Positions of the inputs that E need not be monotone in, and of those that it is."""
        return [column for column in range(self.dim) if column not in self._monotone], list(self._monotone)

    def _beside(self, free: Tensor, monotone: Tensor) -> Tensor:
        """Columns (..., D) in the inputs' order, from those of either kind."""
        free_columns, monotone_columns = self._columns()
        columns = free_columns + monotone_columns
        order = [columns.index(column) for column in range(self.dim)]
        return torch.cat([free, monotone * monotone.new_tensor(list(self._monotone.values()))], dim=-1)[..., order]

    def forward(self, x: Tensor) -> Tensor:
        """The energy at each point.

        Args:
            x: points, shape (N, D).

        Returns:
            Shape (N,).
        """
        check_points(x, self.dim)
        return walk(self.activation, x, self._tensors({}))[0]

    def derivatives(
        self, x: Tensor, weights: Mapping[str, Tensor], order: int = 2, *, context: Any = None
    ) -> Derivatives:
        """Value, gradient and Hessian in one closed-form sweep.

        With a_l the pre-activations, J_l = d a_l / d x, lambda_L = t, mu_l = lambda_l s'(a_l) and
        lambda_l = T_l^T mu_{l+1}:  grad E = k x + a + sum_l A_l^T mu_l,
        Hess E = k I + sum_l J_l diag(lambda_l s''(a_l)) J_l^T.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            order: 1 for value and gradient, 2 for the Hessian too.
            context: for a partially convex network, as ``bind_context`` gives it.
        """
        self.check_order(order)
        check_points(x, self.dim)
        return closed_form(self.activation, x, self.tensors_at(x, weights, context), order)

    def tensors_at(self, x: Tensor, weights: Mapping[str, Tensor], context: Any = None) -> NetworkTensors:
        """The effective tensors of every layer: what a closed form, or a program, is made of.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            context: for a partially convex network, as ``bind_context`` gives it.
        """
        return self._tensors(weights)

    def gradient_logdet(
        self, x: Tensor, weights: Mapping[str, Tensor], chunk_size: int | None = None, *, context: Any = None
    ) -> tuple[Tensor, Tensor]:
        """The gradient and the log-determinant of the Hessian, by ``networks/gradient_logdet.py``.

        Its backward is written by hand; a graph of that backward (``create_graph=True``) can be had, and is as slow as
        ``derivatives``. The transforms of ``torch.func`` do not go through it: use ``derivatives`` under them.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            chunk_size: rows of the layers' Jacobians (N, D, units of all layers) at a time; None for as many as fit
                the processor's cache.
            context: for a partially convex network, as ``bind_context`` gives it.
        """
        self.check_order(2)
        check_points(x, self.dim)
        check_chunk_size(chunk_size)
        tensors = self.tensors_at(x, weights, context)
        if self._monotone:  # k is not the same in every direction
            return self._plain_gradient_logdet(x, tensors)
        return gradient_logdet(self.activation, x, tensors, self._plain_gradient_logdet, chunk_size)

    def _plain_gradient_logdet(self, x: Tensor, tensors: NetworkTensors) -> tuple[Tensor, Tensor]:
        """The same two results through ``derivatives``, for a second differentiation."""
        _, gradient, hessian = closed_form(self.activation, x, tensors, 2)
        assert hessian is not None
        return gradient, cholesky_logdet(hessian)

    def linearize(self, x: Tensor, weights: Mapping[str, Tensor], *, context: Any = None) -> LayeredLinearization:
        """Value, gradient and the closed-form product with the Hessian, which is never built.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            context: for a partially convex network, as ``bind_context`` gives it.
        """
        self.check_order(2)
        check_points(x, self.dim)
        return sweep(self.activation, x, self.tensors_at(x, weights, context), 2)

    @torch.no_grad()
    def initialize_actnorm_(self, x: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Start the ActNorms from data: over these rows, what enters an activation has mean 0 and variance 1.

        Layer by layer, each behind the ones before as just started. A no-op for layers started before, and for a
        network without ActNorm.

        Args:
            x: rows of the data as they reach this network, shape (N, D).
            weights: the weights at the start, by parameter name, as ``derivatives`` takes them.

        Raises:
            ValueError: points of the wrong shape, no rows, or rows that are not finite.
            RuntimeError: the ActNorms' parameters were taken over by a parameterization.
        """
        norms = [layer.actnorm for layer in self._layers() if layer.actnorm is not None]
        if all(norm.initialized for norm in norms):
            return
        check_points(x, self.dim)
        z: Tensor | None = None
        plain = self._tensors(weights, fold_actnorm=False)
        for layer, (hidden, inputs, bias) in zip(self._layers(), plain.layers(), strict=True):
            assert layer.actnorm is not None
            scale: Tensor | None = layer.actnorm.log_scale
            if scale is None:
                raise RuntimeError(
                    "the ActNorms of this ICNN were taken over by a parameterization that emits every parameter, so "
                    "they cannot be started from data; use actnorm with Lift(emit='constrained') (emit: constrained)."
                )
            pre = x @ inputs.T
            if hidden is not None and z is not None:
                pre = torch.addmm(pre, z, hidden.T)
            if not layer.actnorm.initialized:
                layer.actnorm.initialize_(pre)
                layer.actnorm.shift.sub_(bias)
            z = self.activation.value(layer.actnorm(pre) + bias)

    def _tensors(self, weights: Mapping[str, Tensor], fold_actnorm: bool = True) -> NetworkTensors:
        """Effective tensors: those handed in, this module's own for the rest."""

        def fetch(module: nn.Module, prefix: str, name: str) -> Tensor:
            tensor: Tensor | None = weights.get(prefix + name, getattr(module, name))
            if tensor is None:
                raise RuntimeError(
                    f"{prefix + name} was taken over by a parameterization; call the network through its Potential "
                    "(module.potential(batch)), which hands the weights in."
                )
            return tensor

        hiddens, input_weights, biases = [], [], []
        for index, layer in enumerate(self._layers()):
            prefix = f"layers.{index}."
            hidden = None
            if index:
                hidden = fetch(layer, prefix, "hidden_weight")
                hidden = hidden / hidden.shape[1] if self.divide_by_fan_in else hidden
            inputs, bias = fetch(layer, prefix, "input_weight"), fetch(layer, prefix, "bias")
            if self._monotone:
                inputs = self._beside(inputs, fetch(layer, prefix, "monotone_weight"))
            if fold_actnorm and layer.actnorm is not None:
                prefix += "actnorm."
                scale = fetch(layer.actnorm, prefix, "log_scale").exp()
                hidden = None if hidden is None else scale.unsqueeze(1) * hidden
                inputs = scale.unsqueeze(1) * inputs
                bias = bias + fetch(layer.actnorm, prefix, "shift") - scale * fetch(layer.actnorm, prefix, "center")
            hiddens += [] if hidden is None else [hidden]
            input_weights.append(inputs)
            biases.append(bias)
        output, output_inputs = fetch(self, "", "output_weight"), fetch(self, "", "output_input_weight")
        if self._monotone:
            output_inputs = self._beside(output_inputs, fetch(self, "", "output_monotone_weight"))
        output = output / output.shape[0] if self.divide_by_fan_in else output
        k: Tensor | float = self._strong_convexity
        if self.learned_scales:
            scale = _softplus(self._scale_gain * fetch(self, "", "raw_output_scale"))
            k = _softplus(self._scale_gain * fetch(self, "", "raw_strong_convexity"))
            output, output_inputs = scale * output, scale * output_inputs
        if self._monotone:
            k = k * output.new_tensor([column not in self._monotone for column in range(self.dim)])
        intercept = fetch(self, "", "output_bias") if self.intercept else 0.0
        return NetworkTensors(k, output_inputs, output, hiddens, input_weights, biases, intercept)


def _softplus(raw: Tensor) -> Tensor:
    return -F.logsigmoid(-raw)  # F.softplus has a threshold
