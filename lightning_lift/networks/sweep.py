"""The closed-form sweep of an ICNN: up through its layers for the value, down again for the derivatives."""

import torch
from torch import Tensor

from lightning_lift.networks.activations import Activation
from lightning_lift.networks.base import Derivatives
from lightning_lift.networks.hessian_vector import LayeredLinearization
from lightning_lift.networks.tensors import NetworkTensors


def walk(activation: Activation, x: Tensor, tensors: NetworkTensors) -> tuple[Tensor, list[Tensor]]:
    """The energy (N,) and each layer's pre-activations (N, h).

    Args:
        activation: s.
        x: points, shape (N, D).
        tensors: of the network.
    """
    pre_activations: list[Tensor] = []
    z = x  # which the first layer has no T for
    for index, (hidden, inputs, bias) in enumerate(tensors.layers()):
        pre = torch.addmm(bias, tensors.scale_inputs(x, index), inputs.T)
        pre_activations.append(pre if hidden is None else torch.addmm(pre, z, hidden.T))
        z = tensors.scale_units(activation.value(pre_activations[-1]), index)
    slope = tensors.output_input_weight
    linear = z @ tensors.output_weight + (x @ slope if slope.ndim == 1 else (x * slope).sum(1))
    quadratic = 0.5 * (tensors.strong_convexity * x.square()).sum(1)
    return linear + quadratic + tensors.output_bias, pre_activations


def sweep(activation: Activation, x: Tensor, tensors: NetworkTensors, order: int) -> LayeredLinearization:
    """Up through the layers and down again; at order 1 without the curvatures.

    Args:
        activation: s.
        x: points, shape (N, D).
        tensors: of the network.
        order: 1 or 2.
    """
    value, pre_activations = walk(activation, x, tensors)
    layers = tensors.layers()
    slopes, curvatures = [], []  # last layer first, until turned round
    gradient = tensors.strong_convexity * x + tensors.output_input_weight
    adjoint = tensors.output_weight.expand_as(pre_activations[-1])  # lambda_l
    for index in reversed(range(len(layers))):
        (hidden, inputs, _), pre = layers[index], pre_activations[index]
        slopes.append(tensors.scale_units(activation.first(pre), index))
        if order == 2:
            curvatures.append(adjoint * tensors.scale_units(activation.second(pre), index))
        mu = adjoint * slopes[-1]
        gradient = gradient + tensors.scale_inputs(mu @ inputs, index)
        adjoint = adjoint if hidden is None else mu @ hidden
    weights = [(hidden, inputs) for hidden, inputs, _ in layers]
    parts = (weights, slopes[::-1], curvatures[::-1], tensors.strong_convexity, tensors.input_scales)
    return LayeredLinearization(value, gradient, *parts)


def closed_form(activation: Activation, x: Tensor, tensors: NetworkTensors, order: int) -> Derivatives:
    """Value, gradient and, at order 2, Hessian: the formulae of ``ICNN.derivatives``.

    Args:
        activation: s.
        x: points, shape (N, D).
        tensors: of the network.
        order: 1 or 2.
    """
    swept = sweep(activation, x, tensors, order)
    if order == 1:
        return Derivatives(swept.value, swept.gradient, None)
    jacobians: list[Tensor] = []  # (N, D, h): the next layer is then one matrix product over N * D rows
    for index, (hidden, inputs, _) in enumerate(tensors.layers()):
        jacobian = inputs.T.unsqueeze(0)
        if tensors.input_scales is not None:
            jacobian = jacobian * tensors.input_scales[:, index].unsqueeze(2)
        if hidden is not None:
            jacobian = (swept.slopes[index - 1].unsqueeze(1) * jacobians[-1]) @ hidden.T + jacobian
        jacobians.append(jacobian)
    hessian = tensors.strong_convexity * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for jacobian, curvature in zip(reversed(jacobians), reversed(swept.curvatures), strict=True):
        hessian = hessian + (jacobian * curvature.unsqueeze(1)) @ jacobian.transpose(1, 2)
    return Derivatives(swept.value, swept.gradient, hessian)
