"""The input-convex neural network of Amos, Xu & Kolter (ICML 2017), with closed-form derivatives."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_lift.networks.activations import ActivationName, make_activation
from lightning_lift.networks.base import ConvexNetwork, Derivatives, check_points
from lightning_lift.networks.initialization import WeightInit, initialize_nonnegative_


class ConvexLayer(nn.Module):
    """Parameters of one hidden layer: T_l (nonnegative), A_l and c_l.

    Args:
        dim: input dimension D of the whole network.
        fan_in: width of the layer before; 0 for the first layer, which has no T.
        width: number of units h.
    """

    def __init__(self, dim: int, fan_in: int, width: int) -> None:
        super().__init__()
        self.hidden_weight = nn.Parameter(torch.empty(width, fan_in)) if fan_in else None
        self.input_weight = nn.Parameter(torch.empty(width, dim))
        self.bias = nn.Parameter(torch.empty(width))


class _Tensors(NamedTuple):
    """The tensors of one call: effective T (None first), A and c by layer, then t and a."""

    layers: list[tuple[Tensor | None, Tensor, Tensor]]
    output_weight: Tensor
    output_input_weight: Tensor


class ICNN(ConvexNetwork):
    r"""Input-convex neural network with skip connections from the input to every layer.

    z_1 = s(A_0 x + c_0),  z_{l+1} = s(T_l z_l + A_l x + c_l),  E(x) = t^T z_L + a^T x + (k/2) |x|^2,
    with T_l >= 0, t >= 0 and s convex and non-decreasing (Amos, Xu & Kolter, 2017, equation 2).

    Args:
        dim: input dimension D.
        widths: units of each hidden layer, first to last.
        activation: ``softplus``, ``gaussian_softplus`` (x Phi(x) + phi(x)), or ``relu`` (no Hessians).
        strong_convexity: k, the coefficient of |x|^2 / 2; the Hessian's eigenvalues are at least k.
        divide_by_fan_in: divide T_l and t by the number of units they sum over inside the layer, so that the stored
            weights are of order one at any width.
        weight_init: start of the effective T_l and t: ``folded_normal`` (mean 1/sqrt(fan_in)), ``principled``
            (Hoedt & Klambauer, 2023, with its bias), or ``constant`` (every one weight_init_value / fan_in).
        weight_init_value: only for ``constant``: the sum of the weights of one output at the start.
        free_weight_std: standard deviation of A_l and a at the start; None for Xavier uniform.
        bias_std: standard deviation of c_l at the start (0: zero, or the bias of the principled start).

    Raises:
        ValueError: a width or dimension below 1, no hidden layer, a negative k or spread, an unknown name.

    Shapes: forward maps (N, D) to (N,).
    """

    def __init__(
        self,
        dim: int,
        widths: Sequence[int] = (64, 64, 64),
        activation: ActivationName = "softplus",
        strong_convexity: float = 0.02,
        divide_by_fan_in: bool = False,
        weight_init: WeightInit = "folded_normal",
        weight_init_value: float = math.log(2.0),
        free_weight_std: float | None = None,
        bias_std: float = 0.0,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim={dim}: an ICNN needs at least one input.")
        if not widths or min(widths) < 1:
            raise ValueError(f"widths={list(widths)}: give at least one hidden layer, each of at least one unit.")
        if not (strong_convexity >= 0.0 and math.isfinite(strong_convexity)):
            raise ValueError(f"strong_convexity={strong_convexity}: must be finite and not negative.")
        for name, spread in (("free_weight_std", free_weight_std), ("bias_std", bias_std)):
            if spread is not None and not spread >= 0.0:
                raise ValueError(f"{name}={spread}: a standard deviation cannot be negative.")
        self.dim = dim
        self.activation = make_activation(activation)
        self.twice_differentiable = self.activation.twice_differentiable
        self.divide_by_fan_in = divide_by_fan_in
        self._strong_convexity = float(strong_convexity)
        self.layers = nn.ModuleList(
            ConvexLayer(dim, fan_in, width) for fan_in, width in zip((0, *widths[:-1]), widths, strict=True)
        )
        self.output_weight = nn.Parameter(torch.empty(widths[-1]))
        self.output_input_weight = nn.Parameter(torch.empty(dim))
        self._initialize(weight_init, weight_init_value, free_weight_std, bias_std)

    @property
    def strong_convexity(self) -> float:
        """k, the smallest eigenvalue that the Hessian can have."""
        return self._strong_convexity

    def _initialize(self, how: WeightInit, value: float, free_std: float | None, bias_std: float) -> None:
        with torch.no_grad():
            for layer in self._layers():
                bias = 0.0
                if layer.hidden_weight is not None:
                    fan_in = layer.hidden_weight.shape[1]
                    bias = initialize_nonnegative_(layer.hidden_weight, fan_in, how, value)
                    layer.hidden_weight.mul_(self._stored_scale(fan_in))
                self._initialize_free(layer.input_weight, free_std)
                layer.bias.normal_(bias, bias_std)
            fan_in = self.output_weight.shape[0]
            initialize_nonnegative_(self.output_weight, fan_in, how, value)
            self.output_weight.mul_(self._stored_scale(fan_in))
            self._initialize_free(self.output_input_weight.unsqueeze(0), free_std)

    @staticmethod
    def _initialize_free(weight: Tensor, std: float | None) -> None:
        if std is None:
            nn.init.xavier_uniform_(weight)
        else:
            weight.normal_(0.0, std)

    def _layers(self) -> list[ConvexLayer]:
        return [layer for layer in self.layers if isinstance(layer, ConvexLayer)]

    def _stored_scale(self, fan_in: int) -> float:
        """Stored weight over effective weight."""
        return float(fan_in) if self.divide_by_fan_in else 1.0

    def nonnegative_names(self) -> tuple[str, ...]:
        """T_1, ..., T_{L-1} and t."""
        return (*(f"layers.{i}.hidden_weight" for i in range(1, len(self.layers))), "output_weight")

    def forward(self, x: Tensor) -> Tensor:
        """The energy at each point.

        Args:
            x: points, shape (N, D).

        Returns:
            Shape (N,).
        """
        check_points(x, self.dim)
        tensors = self._tensors({})
        z: Tensor | None = None
        for hidden, inputs, bias in tensors.layers:
            pre = torch.addmm(bias, x, inputs.T)
            z = self.activation.value(pre if hidden is None or z is None else torch.addmm(pre, z, hidden.T))
        assert z is not None
        return self._close(x, z, tensors)

    def derivatives(self, x: Tensor, weights: Mapping[str, Tensor], order: int = 2) -> Derivatives:
        """Value, gradient and Hessian in one closed-form sweep.

        With a_l the pre-activations, J_l = d a_l / d x, lambda_L = t, mu_l = lambda_l s'(a_l) and
        lambda_l = T_l^T mu_{l+1}:  grad E = k x + a + sum_l A_l^T mu_l,
        Hess E = k I + sum_l J_l diag(lambda_l s''(a_l)) J_l^T.

        Args:
            x: points, shape (N, D).
            weights: replacement tensors by parameter name.
            order: 1 for value and gradient, 2 for the Hessian too.
        """
        self.check_order(order)
        check_points(x, self.dim)
        tensors = self._tensors(weights)
        activation, k = self.activation, self._strong_convexity
        pre_activations: list[Tensor] = []
        slopes: list[Tensor] = []
        jacobians: list[Tensor] = []  # (N, D, h): the next layer is then one matrix product over N * D rows
        z: Tensor | None = None
        for hidden, inputs, bias in tensors.layers:
            pre = torch.addmm(bias, x, inputs.T)
            jacobian = inputs.T.unsqueeze(0)
            if hidden is not None and z is not None:
                pre = torch.addmm(pre, z, hidden.T)
                if order == 2:
                    jacobian = (slopes[-1].unsqueeze(1) * jacobians[-1]) @ hidden.T + jacobian
            z = activation.value(pre)
            pre_activations.append(pre)
            slopes.append(activation.first(pre))
            jacobians.append(jacobian)
        assert z is not None
        value = self._close(x, z, tensors)

        gradient = k * x + tensors.output_input_weight
        hessian = k * torch.eye(self.dim, dtype=x.dtype, device=x.device) if order == 2 else None
        adjoint = tensors.output_weight.expand_as(z)  # lambda_l
        for index in reversed(range(len(tensors.layers))):
            hidden, inputs, _ = tensors.layers[index]
            if hessian is not None:
                jacobian = jacobians[index]
                curvature = adjoint * activation.second(pre_activations[index])
                hessian = hessian + (jacobian * curvature.unsqueeze(1)) @ jacobian.transpose(1, 2)
            mu = adjoint * slopes[index]
            gradient = gradient + mu @ inputs
            if hidden is not None:
                adjoint = mu @ hidden
        return Derivatives(value, gradient, hessian)

    def _close(self, x: Tensor, z: Tensor, tensors: _Tensors) -> Tensor:
        linear = z @ tensors.output_weight + x @ tensors.output_input_weight
        energy: Tensor = linear + 0.5 * self._strong_convexity * x.square().sum(1)
        return energy

    def _tensors(self, weights: Mapping[str, Tensor]) -> _Tensors:
        """Effective tensors: those handed in, this module's own for the rest."""

        def fetch(module: nn.Module, prefix: str, name: str) -> Tensor:
            tensor: Tensor | None = weights.get(prefix + name, getattr(module, name))
            if tensor is None:
                raise RuntimeError(
                    f"{prefix + name} was taken over by a parameterization; call the network through its Potential "
                    "(module.potential(batch)), which hands the weights in."
                )
            return tensor

        layers: list[tuple[Tensor | None, Tensor, Tensor]] = []
        for index, layer in enumerate(self.layers):
            prefix = f"layers.{index}."
            hidden = None
            if index:
                hidden = fetch(layer, prefix, "hidden_weight")
                hidden = hidden / hidden.shape[1] if self.divide_by_fan_in else hidden
            layers.append((hidden, fetch(layer, prefix, "input_weight"), fetch(layer, prefix, "bias")))
        output = fetch(self, "", "output_weight")
        output = output / output.shape[0] if self.divide_by_fan_in else output
        return _Tensors(layers, output, fetch(self, "", "output_input_weight"))
