"""The best point of a trained convex function under linear constraints, and what shows that it is the best."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import Bounds, LinearConstraint, linprog
from torch import Tensor

from lightning_lift.datamodules.units import Units
from lightning_lift.networks.activations import ReLU
from lightning_lift.programs.cvxpy_expression import import_cvxpy, to_cvxpy
from lightning_lift.programs.function import Array, ConvexFunction, convex_function
from lightning_lift.programs.linear import linear_program

Constraints: TypeAlias = Sequence[LinearConstraint | Bounds] | LinearConstraint | Bounds

_ON = 1e-6  # relative distance from a kink or a bound within which a point lies on it


class Optimum(NamedTuple):
    """A solver's answer, checked on the network.

    Attributes:
        x: the point, shape (D,), or (N, D) for N points, in original units.
        value: f there, summed over the points, by the network itself in float64.
        objective: what the solver states.
        residual: of the conditions of Karush, Kuhn & Tucker at x: the largest entry of (a subgradient of f) + (normals
            of the constraints that x lies on), for the best choice of both; in units of f a unit of x. Without
            constraints and kinks it is the largest entry of the gradient. Zero at the optimum and, as f is convex (or
            concave and maximised), nowhere else.
        violation: how far x is outside of the constraints, in their units.
    """

    x: Array
    value: float
    objective: float
    residual: float
    violation: float

    @property
    def gap(self) -> float:
        """|value - objective|."""
        return abs(self.value - self.objective)


def optimum(
    model: Any,
    constraints: Constraints = (),
    context: Tensor | None = None,
    points: int | None = None,
    max_error: float | None = None,
    tolerance: float = 1e-6,
) -> Optimum:
    """Minimise a convex f, or maximise a concave one, under linear constraints, and check the answer on the network.

    A relu network without a quadratic term, or a smooth one in tangent planes, is solved as a linear program by HiGHS,
    every other by cvxpy.

    Args:
        model: as for ``to_cvxpy``.
        constraints: ``scipy.optimize.LinearConstraint`` and ``Bounds`` on x, or on the points one after the other.
        context: of a partially convex network: one row for all points or one a point, as the model takes it.
        points: N, for the sum of f over N points; None for a single one.
        max_error: for tangent planes, as for ``to_cvxpy``.
        tolerance: largest difference of the network's value and the solver's, beside ``max_error``, relative to
            1 + |value|.

    Raises:
        ImportError: cvxpy is needed and not installed.
        TypeError: a model that is no such function, or constraints of another kind.
        ValueError: constraints that do not fit x or that no point satisfies, an f without an optimum, and what
            ``to_cvxpy`` refuses.
        RuntimeError: the solver fails, or its answer is not the network's.
    """
    if points is not None and points < 1:
        raise ValueError(f"points={points}: a program has at least one.")
    function = convex_function(model, context)
    shape = (points or 1, function.potential.dim)
    matrix, low, high = _rows(constraints, shape)
    # Solved in training units, for sign * E alone: a mean of 1e6 or a target of 1e7 is no affair of the solver's.
    one, factor = np.eye(shape[1]), abs(function.factor)
    inner = function._replace(
        units=Units(*map(torch.from_numpy, (0.0 * one[0], one))), factor=function.sign, offset=0.0
    )
    location = matrix @ np.tile(function.units.location.numpy(), shape[0])
    to_original = np.linalg.inv(function.scaling())
    rows = (matrix @ sp.block_diag([to_original] * shape[0]), low - location, high - location)
    layers = function.layers(shape[0])
    piecewise = isinstance(layers[0].activation, ReLU) or max_error is not None
    is_linear = piecewise and not any(own.curvature.any() for own in layers)
    solve = _by_linprog if is_linear else _by_cvxpy
    status, u, objective = solve(inner, shape, None if max_error is None else max_error / factor, rows)
    if status == "infeasible":
        raise ValueError("no point satisfies the constraints: relax them (a density's support is one of them).")
    if status == "unbounded":
        way = "falls" if function.sign > 0 else "rises"
        raise ValueError(f"the function {way} without end inside the constraints: bound x, with Bounds or more rows.")
    if u is None:
        raise RuntimeError(f"the solver ends with {status!r}: rescale x, or use to_cvxpy with another solver.")
    x = function.units.location.numpy() + u @ to_original.T
    objective = function.offset * shape[0] + factor * objective
    found = certify(function, x if points else x[0], float(objective), constraints)
    allowed = tolerance * (1.0 + abs(found.value)) + (max_error or 0.0) * shape[0]
    if not found.gap <= allowed:
        raise RuntimeError(
            f"the solver states {objective:.10g} and the network gives {found.value:.10g}: they differ by more than "
            f"{allowed:.3g}; rescale x, or use to_cvxpy with another solver."
        )
    return found


def certify(
    model: Any, x: Array, objective: float, constraints: Constraints = (), context: Tensor | None = None
) -> Optimum:
    """Check a point that any solver gave as the optimum of f (of the sum over the points) on the network itself.

    Args:
        model: as for ``to_cvxpy``.
        x: shape (D,), or (N, D), in original units.
        objective: what the solver states.
        constraints: as for ``optimum``.
        context: as for ``optimum``.

    Raises:
        TypeError: as for ``optimum``.
        ValueError: a point of another dimension, constraints or a context that do not fit.
    """
    function, x = convex_function(model, context), np.asarray(x, dtype=np.float64)
    if x.ndim not in (1, 2) or x.shape[-1] != function.potential.dim:
        raise ValueError(f"x of shape {x.shape} does not fit: the network takes {function.potential.dim} inputs.")
    rows = np.atleast_2d(x)
    matrix, low, high = _rows([*_listed(constraints), *_support(function, len(rows))], rows.shape)
    value, _ = function.value_gradient(rows)
    image = matrix @ rows.reshape(-1)
    violation = float(np.concatenate([low - image, image - high, [0.0]]).max())
    residual = _stationarity(function, rows, *_normals(matrix, low, high, image))
    return Optimum(x, float(value.sum()), objective, residual, violation)


def _listed(constraints: Constraints) -> Sequence[LinearConstraint | Bounds]:
    return [constraints] if isinstance(constraints, LinearConstraint | Bounds) else constraints


def _support(function: ConvexFunction, points: int) -> list[LinearConstraint]:
    """The support of a density, as constraints on the points in original units."""
    if function.support is None:
        return []
    low, high = function.support.double().numpy() + function.scaling() @ function.units.location.numpy()
    finite = np.isfinite(low) | np.isfinite(high)
    matrix = sp.block_diag([function.scaling()[finite]] * points)
    return [LinearConstraint(matrix, np.tile(low[finite], points), np.tile(high[finite], points))]


def _rows(constraints: Constraints, shape: tuple[int, int]) -> tuple[sp.csr_array, Array, Array]:
    """All constraints as low <= matrix x <= high."""
    size = shape[0] * shape[1]
    parts: list[tuple[Any, Any, Any]] = [(sp.csr_array((0, size)), np.zeros(0), np.zeros(0))]
    for constraint in _listed(constraints):
        if isinstance(constraint, Bounds):
            matrix: Any = sp.eye_array(size)
        elif isinstance(constraint, LinearConstraint):
            matrix = sp.csr_array(np.atleast_2d(constraint.A) if not sp.issparse(constraint.A) else constraint.A)
        else:
            raise TypeError(
                f"{type(constraint).__name__} is no linear constraint: give scipy.optimize.LinearConstraint or Bounds, "
                "or write the program with to_cvxpy."
            )
        if matrix.shape[1] != size:
            raise ValueError(f"a constraint has {matrix.shape[1]} columns, and x has {size} entries.")
        try:
            sides = [
                np.broadcast_to(np.asarray(side, float), matrix.shape[:1]) for side in (constraint.lb, constraint.ub)
            ]
        except ValueError as error:
            raise ValueError(
                f"a constraint has {matrix.shape[0]} rows and bounds of another number: {error}."
            ) from error
        if not np.isfinite(matrix.data).all() or np.isnan(sides).any():
            raise ValueError("a constraint has entries that are not finite, and only a bound may be infinite.")
        parts.append((matrix, *sides))
    matrices, lows, highs = zip(*parts, strict=True)
    return sp.vstack(matrices).tocsr(), np.concatenate(lows), np.concatenate(highs)


def _by_linprog(function: ConvexFunction, shape: Any, max_error: Any, rows: Any) -> tuple[str, Array | None, float]:
    program = linear_program(function, None, shape[0], max_error)
    matrix, low, high = rows
    own = sp.hstack([matrix, sp.csr_array((matrix.shape[0], len(program.c) - matrix.shape[1]))]).tocsr()
    equal, below, above = low == high, (low != high) & np.isfinite(high), (low != high) & np.isfinite(low)
    result = linprog(
        program.c,
        sp.vstack([program.A_ub, own[below], -own[above]]),
        np.concatenate([program.b_ub, high[below], -low[above]]),
        own[equal] if equal.any() else None,
        low[equal] if equal.any() else None,
        program.bounds,
        method="highs",
    )
    if result.status in (2, 3):
        return ("infeasible" if result.status == 2 else "unbounded"), None, np.nan
    if result.status:
        return str(result.message), None, np.nan
    return "optimal", result.x[program.x_columns], program.sign * (result.fun + program.constant)


def _by_cvxpy(function: ConvexFunction, shape: Any, max_error: Any, rows: Any) -> tuple[str, Array | None, float]:
    cp = import_cvxpy()
    x, (matrix, low, high) = cp.Variable(shape), rows
    value, own = to_cvxpy(function, x, None, max_error)
    image: Any = matrix @ cp.vec(x, order="C") if matrix.shape[0] else None
    equal, below, above = low == high, (low != high) & np.isfinite(high), (low != high) & np.isfinite(low)
    own += [image[equal] == low[equal]] if equal.any() else []
    own += [image[below] <= high[below]] if below.any() else []
    own += [image[above] >= low[above]] if above.any() else []
    total = cp.sum(value)
    problem = cp.Problem(cp.Minimize(total) if total.is_convex() else cp.Maximize(total), own)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Solution may be inaccurate")  # the certificate says how accurate it is
            problem.solve(solver=cp.CLARABEL)
    except cp.SolverError as error:
        return str(error), None, np.nan
    if problem.status in ("infeasible", "unbounded", "infeasible_inaccurate", "unbounded_inaccurate"):
        return problem.status.removesuffix("_inaccurate"), None, np.nan
    # not problem.value, which cvxpy computes from x: the solver's own statement is to be checked
    return problem.status, x.value, problem.solution.opt_val


def _normals(matrix: sp.csr_array, low: Array, high: Array, image: Array) -> tuple[sp.csr_array, Array]:
    """Rows of the constraints that a point lies on, with the sign that their multipliers must have (0 for any)."""
    at = [np.abs(side - image) <= _ON * (1.0 + np.abs(image)) for side in (low, high)]
    on = at[0] | at[1]
    return matrix[on], np.where(at[0] & at[1], 0.0, np.where(at[1], 1.0, -1.0))[on]


def _stationarity(function: ConvexFunction, x: Array, normals: sp.csr_array, signs: Array) -> float:
    """min over subgradients g and multipliers m of max |sign g + normals^T m|: a linear program itself.

    At a kink of relu a subgradient is a + sum_l A_l^T mu_l with mu_l between 0 and lambda_l = T_{l+1}^T mu_{l+1}:
    linear in mu. Units within ``_ON`` of their kink count as on it.
    """
    each = function.layers(len(x))
    each = each * (len(x) // len(each))
    u, scaling, factor = function.to_training(x), function.scaling(), abs(function.factor)
    if not isinstance(each[0].activation, ReLU):
        fixed, choices, rows = function.sign * function.value_gradient(x)[1], [], []
    else:
        fixed = factor * np.stack([(own.slope + own.curvature * at) @ scaling for own, at in zip(each, u, strict=True)])
        parts = [_subgradients(own, at) for own, at in zip(each, u, strict=True)]
        choices, rows = [factor * scaling.T @ part[0] for part in parts], [part[1:] for part in parts]
    size, num_choices = fixed.size, sum(part.shape[1] for part in choices)
    if not num_choices and not len(signs):
        return float(np.abs(fixed).max())
    gradient = sp.hstack([*([sp.block_diag(choices)] if choices else []), normals.T, sp.csr_array((size, 0))]).tocsr()
    ones = np.ones((size, 1))
    limits = sp.vstack([sp.hstack([gradient, -ones]), sp.hstack([-gradient, -ones])])
    sides = np.concatenate([-fixed.reshape(-1), fixed.reshape(-1)])
    if rows:
        inner, upper = sp.block_diag([part[0] for part in rows]), np.concatenate([part[1] for part in rows])
        limits = sp.vstack([limits, sp.hstack([inner, sp.csr_array((len(upper), len(signs) + 1))])])
        sides = np.concatenate([sides, upper])
    free = [(0.0 if sign > 0 else None, 0.0 if sign < 0 else None) for sign in signs]
    cost = np.concatenate([np.zeros(num_choices + len(signs)), [1.0]])
    result = linprog(cost, limits, sides, bounds=[(0.0, None)] * num_choices + free + [(0.0, None)], method="highs")
    return float(result.fun) if result.status == 0 else np.inf


def _subgradients(layers: Any, u: Array) -> tuple[Array, sp.csr_array, Array]:
    """All mu of one point: what they add to the gradient (D, H), and the rows (M, H) and limits (M,) that they obey."""
    pres = layers.pre_activations(u[None])
    slack = [
        _ON * (1.0 + np.abs(inputs) @ np.abs(u) + np.abs(bias))
        for inputs, bias in zip(layers.inputs, layers.biases, strict=True)
    ]
    starts = np.concatenate([[0], np.cumsum([len(bias) for bias in layers.biases])])
    rows, limits = [], []
    for index, (pre, near) in enumerate(zip(pres, slack, strict=True)):
        width, last = len(near), index == len(pres) - 1
        share = sp.lil_array((width, starts[-1]))  # mu_l - lambda_l
        share[:, starts[index] : starts[index + 1]] = sp.eye_array(width)
        if not last:
            share[:, starts[index + 1] : starts[index + 2]] = -layers.hidden[index].T
        most = layers.output if last else np.zeros(width)
        on, off = pre[0] > near, pre[0] < -near
        alone = sp.lil_array((width, starts[-1]))
        alone[:, starts[index] : starts[index + 1]] = sp.eye_array(width)
        share, alone = share.tocsr(), alone.tocsr()
        rows += [share, -share[on], alone[off]]  # mu <= lambda; >= where the unit is on; 0 where it is off
        limits += [most, -most[on], np.zeros(int(off.sum()))]
    return np.concatenate(layers.inputs).T, sp.vstack(rows).tocsr(), np.concatenate(limits)
