"""What programs are made of: a convex or concave function in original units, and its layers as arrays."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_lift.datamodules.units import Units
from lightning_lift.networks import ICNN
from lightning_lift.networks.activations import Activation
from lightning_lift.potential import Potential

Array = NDArray[np.float64]


class ConvexFunction(NamedTuple):
    """f(x) = offset + factor * E((x - location) / scale), convex where the factor is positive, else concave.

    What a frozen model gives as ``convex_function()``, so that programs can be made of it.

    Attributes:
        potential: E, in training units.
        units: of x.
        factor: not zero.
        offset: in the units of f.
        support: low and high row in training units, shape (2, D), outside of which f is infinite; None for none.
        context_units: of a context, which then is in original units; None where they are those of the potential.
    """

    potential: Potential
    units: Units
    factor: float = 1.0
    offset: float = 0.0
    support: Tensor | None = None
    context_units: Units | None = None

    @property
    def sign(self) -> float:
        """1 where f is convex, and is minimised; -1 where it is concave, and is maximised."""
        return 1.0 if self.factor > 0 else -1.0

    def to_training(self, x: Array) -> Array:
        """Points (N, D) in training units."""
        scaled: Array = self.units.apply(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return scaled

    def scaling(self) -> Array:
        """The matrix (D, D) that takes x - location to training units."""
        scale = self.units.scale
        matrix = scale.diag() if scale.ndim == 1 else scale
        inverse: Array = torch.linalg.inv(matrix).numpy()
        return inverse

    def value_gradient(self, x: Array) -> tuple[Array, Array]:
        """f (N,) and its gradient (N, D) at points in original units, by the network itself in float64.

        Args:
            x: shape (N, D).
        """
        with torch.no_grad():
            rows = torch.from_numpy(self.to_training(x))
            value, gradient = self.potential.to(torch.float64).value_gradient(rows)
        return self.offset + self.factor * value.numpy(), self.factor * gradient.numpy() @ self.scaling()

    def layers(self, points: int) -> list["Layers"]:
        """The layers of E for each point, in training units; one for all points where they share it.

        Args:
            points: how many.

        Raises:
            TypeError: a network whose layers are not known.
            ValueError: a network that is not convex, or a context that does not fit.
        """
        potential, network, context = self.potential, self.potential.network, self.potential.context
        for name in network.nonnegative_names():
            smallest = float(potential.weights[name].min())
            if not smallest >= 0.0:
                raise ValueError(
                    f"{name} of {type(network).__name__} has an entry {smallest:.4g}: the network is not convex, so no "
                    "convex program has its values; take the weights of a parameterization, module.potential()."
                )
        if context is not None and len(context) not in (1, points):
            raise ValueError(
                f"a context of {len(context)} rows does not fit {points} points: give one, or one a point."
            )
        num_contexts = 1 if context is None else len(context)
        return [_layers(potential.rows(slice(i, i + 1))) for i in range(num_contexts)]


class Layers(NamedTuple):
    """E of one context: z = s(T z + A u + c) layer by layer, E = t z + a u + k u^2 / 2 + constant, in float64.

    Attributes:
        activation: s.
        hidden: T of each layer but the first.
        inputs: A of each layer, shape (h, D).
        biases: c of each layer.
        output: t, shape (h,).
        slope: a, shape (D,).
        curvature: k of each input, shape (D,).
        constant: of E.
    """

    activation: Activation
    hidden: list[Array]
    inputs: list[Array]
    biases: list[Array]
    output: Array
    slope: Array
    curvature: Array
    constant: float

    def pre_activations(self, u: Array) -> list[Array]:
        """What enters each layer's activation, at points (N, D) in training units."""
        found: list[Array] = []
        for index, (inputs, bias) in enumerate(zip(self.inputs, self.biases, strict=True)):
            pre = u @ inputs.T + bias
            found.append(pre + self._activated(found[-1]) @ self.hidden[index - 1].T if index else pre)
        return found

    def value(self, u: Array) -> Array:
        """E at points (N, D) in training units."""
        z = self._activated(self.pre_activations(u)[-1])
        value: Array = z @ self.output + u @ self.slope + 0.5 * u**2 @ self.curvature + self.constant
        return value

    def _activated(self, pre: Array) -> Array:
        activated: Array = self.activation.value(torch.from_numpy(pre)).numpy()
        return activated


def convex_function(model: Any, context: Tensor | None = None) -> ConvexFunction:
    """What programs can be made of: a potential, in its own units, or a frozen model, in original ones.

    Args:
        model: a ``Potential``, or what ``freeze()`` of an energy, a density or a regression gives.
        context: of a partially convex network, as the model takes it: one row for all points, or one a point.

    Raises:
        TypeError: anything else; it says what to give.
        ValueError: a context that does not fit.
    """
    if isinstance(model, ConvexFunction):
        function = model
    elif isinstance(model, Potential):
        one = torch.ones(model.dim, dtype=torch.float64)
        function = ConvexFunction(model, Units(torch.zeros_like(one), one))
    elif hasattr(model, "convex_function"):
        function = model.convex_function()
    else:
        way = "model.freeze(), or model.potential()" if hasattr(model, "freeze") else "a Potential or a frozen model"
        raise TypeError(f"{type(model).__name__} is no convex or concave function of x: give {way}.")
    if context is None:
        return function
    context = torch.as_tensor(context)
    if function.context_units is not None:
        context = function.context_units.to(context.double()).apply(context.double())
    return function._replace(potential=function.potential.at(context))


@torch.no_grad()
def _layers(potential: Potential) -> Layers:
    network, potential = potential.network, potential.to(torch.float64)
    trial = torch.from_numpy(np.random.default_rng(0).standard_normal((8, potential.dim)))
    tensors = potential.tensors(trial)  # of one context: folded
    assert isinstance(network, ICNN)
    k = torch.as_tensor(tensors.strong_convexity, dtype=torch.float64).expand(network.dim)
    hidden, inputs, biases = ([tensor.numpy() for tensor in part] for part in tensors[3:6])
    output, slope = tensors.output_weight.numpy(), tensors.output_input_weight.numpy()
    constant = float(tensors.output_bias)
    layers = Layers(network.activation, hidden, inputs, biases, output, slope, k.numpy(), constant)
    value = potential.value(trial).numpy()
    if not np.isfinite(value).all():
        raise ValueError(
            f"{type(network).__name__} gives values that are not finite: its weights or its context are not."
        )
    if not np.allclose(layers.value(trial.numpy()), value, rtol=1e-9, atol=1e-9 * (1 + np.abs(value).max())):
        raise TypeError(
            f"{type(network).__name__} does not compute what its layers say (a forward of its own?): a program of them "
            "would be of another function."
        )
    return layers
