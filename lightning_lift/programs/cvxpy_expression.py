"""A trained convex network as an expression of cvxpy, whose curvature cvxpy knows."""

from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from lightning_lift.networks.activations import ReLU, Softplus
from lightning_lift.programs.function import Layers, convex_function
from lightning_lift.programs.planes import planes_of


def to_cvxpy(
    model: Any, x: Any, context: Tensor | None = None, max_error: float | None = None
) -> tuple[Any, list[Any]]:
    """f(x) as a convex (or concave) expression, for any disciplined convex program.

    relu becomes maxima with 0 (linear, without binaries), softplus exponential cones (two a unit), quadratic terms stay
    quadratic; ActNorm, learned scales and the data's units are folded in. All of these are exact. The expression is one
    that cvxpy reasons about: to maximise a convex cost is refused by cvxpy itself, and ``expression.value`` is f.

    Args:
        model: a ``Potential``, in its own units, or what ``freeze()`` of an energy, a density (f is its log-density,
            concave) or a regression (f is its link, concave where it is) gives, in original units.
        x: a variable or an affine expression of cvxpy, shape (D,), or (N, D) for N points at once.
        context: of a partially convex network: one row for all points or one a point, as the model takes it.
        max_error: for ``gaussian_softplus``, which becomes the largest of tangent planes: f is then too low (too high,
            where it is concave) by at most this much, at every point.

    Returns:
        The expression, a scalar, or of shape (N,); and constraints that go with it: the support of a density.

    Raises:
        ImportError: cvxpy is not installed.
        TypeError: a model that is no such function, or an x that is not affine.
        ValueError: x of another dimension; a context that is missing or does not fit; weights that are not convex; a
            ``gaussian_softplus`` without a ``max_error``.
    """
    cp = import_cvxpy()
    function = convex_function(model, context)
    x = cp.Expression.cast_to_const(x)
    dim = function.potential.dim
    if x.ndim not in (1, 2) or x.shape[-1] != dim:
        raise ValueError(f"x of shape {x.shape} does not fit: the network takes {dim} inputs, ({dim},) or (N, {dim}).")
    if not x.is_affine():
        raise TypeError("x must be a variable of cvxpy or an affine expression: a convex function of it is convex.")
    points = 1 if x.ndim == 1 else x.shape[0]
    rows = cp.reshape(x, (points, dim), order="C")
    u = (rows - np.tile(function.units.location.numpy(), (points, 1))) @ function.scaling().T
    layers = function.layers(points)
    if len(layers) == 1:
        energy = _energy(cp, layers[0], u, max_error, function.factor)
    else:
        each = (_energy(cp, own, u[i : i + 1], max_error, function.factor) for i, own in enumerate(layers))
        energy = cp.hstack(list(each))
    value = function.offset + function.factor * energy
    constraints = []
    if function.support is not None:
        low, high = (np.tile(row, (points, 1)) for row in function.support.double().numpy())
        constraints = [u[np.isfinite(low)] >= low[np.isfinite(low)]] if np.isfinite(low).any() else []
        constraints += [u[np.isfinite(high)] <= high[np.isfinite(high)]] if np.isfinite(high).any() else []
    return (value[0] if x.ndim == 1 else value), constraints


def _energy(cp: ModuleType, layers: Layers, u: Any, max_error: float | None, factor: float) -> Any:
    """E at N points in training units, shape (N,)."""
    z: Any = None
    for index, (inputs, bias) in enumerate(zip(layers.inputs, layers.biases, strict=True)):
        pre = u @ inputs.T + np.tile(bias, (u.shape[0], 1))
        if z is not None:
            pre = pre + z @ layers.hidden[index - 1].T
        if isinstance(layers.activation, ReLU):
            z = cp.pos(pre)
        elif isinstance(layers.activation, Softplus) and max_error is None:
            z = cp.logistic(pre)
        else:
            slopes, intercepts = planes_of(layers, max_error, factor)
            stacked = slopes[:, None] @ cp.reshape(pre, (1, pre.size), order="C")  # a plane a row
            planes = stacked + np.tile(intercepts[:, None], (1, pre.size))
            z = cp.reshape(cp.max(planes, axis=0), pre.shape, order="C")
    energy = z @ layers.output + u @ layers.slope + layers.constant
    return energy + 0.5 * cp.square(u) @ layers.curvature if layers.curvature.any() else energy


def import_cvxpy() -> ModuleType:
    """The package cvxpy.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import cvxpy
    except ImportError as error:
        raise ImportError("programs through cvxpy need an extra: pip install 'lightning-lift[cvxpy]'.") from error
    module: ModuleType = cvxpy
    return module
