"""A trained relu network as a linear program, for scipy.optimize.linprog, HiGHS and LP or MPS files."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from torch import Tensor

from lightning_lift.files import whole_file
from lightning_lift.programs.function import Array, ConvexFunction, Layers, convex_function
from lightning_lift.programs.planes import planes_of


class LinearProgram(NamedTuple):
    """minimise c v subject to A_ub v <= b_ub and bounds; then sign * (c v + constant) is the sum of f over the points.

    ``linprog(program.c, program.A_ub, program.b_ub, bounds=program.bounds)`` solves it; constraints of your own are
    rows in the columns ``x_columns``.

    Attributes:
        c: costs, shape (V,).
        A_ub: sparse, shape (M, V).
        b_ub: shape (M,).
        bounds: lowest and highest value of each variable, shape (V, 2).
        constant: what the objective lacks.
        x_columns: which variables are x, shape (D,), or (N, D) for N points; in original units.
        sign: 1 for a convex f, which is minimised; -1 for a concave one, which is maximised.
    """

    c: Array
    A_ub: sp.csr_array
    b_ub: Array
    bounds: Array
    constant: float
    x_columns: np.ndarray[Any, np.dtype[np.intp]]
    sign: float

    def value(self, x: Array) -> float:
        """The program's objective where x is held fixed: the (sum of the) function there, if the program is right.

        Args:
            x: of the shape of ``x_columns``.

        Raises:
            ValueError: a point outside of the function's support.
        """
        bounds = self.bounds.copy()
        bounds[self.x_columns.reshape(-1)] = np.reshape(x, (-1, 1))
        result = linprog(self.c, self.A_ub, self.b_ub, bounds=bounds, method="highs")
        if result.status:
            raise ValueError(f"x = {x.tolist()}: {result.message}")
        return self.sign * float(result.fun + self.constant)

    def write(self, path: Path) -> None:
        """Write it as a file that any solver reads; its columns are x1, ..., then the network's z1, ...

        A concave f is written as the minimisation of -f. The file has the constant, and appears whole or not at all.

        Args:
            path: ending in .lp or .mps.

        Raises:
            ValueError: another ending, or HiGHS cannot write there.
            ImportError: highspy is not installed.
        """
        if path.suffix not in (".lp", ".mps"):
            raise ValueError(f"{path}: a program is written as .lp or .mps.")
        try:
            import highspy
        except ImportError as error:
            raise ImportError("LP and MPS files need an extra: pip install 'lightning-lift[cvxpy]'.") from error
        model, columns = highspy.HighsLp(), self.A_ub.tocsc()
        model.num_col_, model.num_row_ = columns.shape[1], columns.shape[0]
        model.col_cost_, model.offset_ = self.c, self.constant
        model.col_lower_, model.col_upper_ = self.bounds.T
        model.row_lower_, model.row_upper_ = np.full(len(self.b_ub), -np.inf), self.b_ub
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_ = columns.indptr, columns.indices
        model.a_matrix_.value_ = columns.data
        num_x = self.x_columns.size
        names = [f"x{i + 1}" if i < num_x else f"z{i + 1 - num_x}" for i in range(len(self.c))]
        model.col_names_ = names
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.setOptionValue("output_flag", False)
        solver.passModel(model)
        with whole_file(path) as temporary:
            if solver.writeModel(str(temporary)) == highspy.HighsStatus.kError:
                raise ValueError(f"HiGHS could not write {path}.")


def linear_program(
    model: Any, context: Tensor | None = None, points: int | None = None, max_error: float | None = None
) -> LinearProgram:
    """min f(x), or max f(x) where f is concave, of a relu network: exact, without binaries.

    Each unit z >= T z + A x + c, z >= 0 is as low as it may be at the optimum, because T, t >= 0 (Amos, Xu & Kolter,
    2017, section 4). Units of the data are folded in.

    Args:
        model: as for ``to_cvxpy``.
        context: of a partially convex network: one row for all points or one a point, as the model takes it.
        points: N, for the sum of f over N points; None for a single one.
        max_error: for a smooth activation, which becomes the largest of tangent planes: f is then too low (too high,
            where it is concave) by at most this much, at every point.

    Raises:
        TypeError: a model that is no such function.
        ValueError: a quadratic term; a smooth activation without a ``max_error``; a context that is missing or does not
            fit; weights that are not convex.
    """
    function = convex_function(model, context)
    if points is not None and points < 1:
        raise ValueError(f"points={points}: a program has at least one.")
    num_points, dim = points or 1, function.potential.dim
    each = function.layers(num_points)
    if any(layers.curvature.any() for layers in each):
        raise ValueError(
            f"the network has a quadratic term (k = {each[0].curvature.max():.4g}), so this is a quadratic program: "
            "use to_cvxpy, or train with strong_convexity=0."
        )
    each = each * (num_points // len(each))
    blocks = [_block(layers, function, max_error) for layers in each]
    num_x = num_points * dim
    matrix = sp.hstack([sp.block_diag([b.rows for b in blocks]), sp.block_diag([b.weights for b in blocks])]).tocsr()
    slopes = [abs(function.factor) * layers.slope @ function.scaling() for layers in each]
    # f = offset + factor * (E at location, in which all of x is folded, + ...)
    moved = [layers.constant - layers.slope @ function.scaling() @ function.units.location.numpy() for layers in each]
    lowest = np.concatenate([np.full(num_x, -np.inf), *(block.lowest for block in blocks)])
    columns = np.arange(num_x)
    return LinearProgram(
        c=np.concatenate([*slopes, *(abs(function.factor) * block.costs for block in blocks)]),
        A_ub=matrix,
        b_ub=np.concatenate([block.limits for block in blocks]),
        bounds=np.column_stack([lowest, np.full_like(lowest, np.inf)]),
        constant=function.sign * num_points * function.offset + abs(function.factor) * float(sum(moved)),
        x_columns=columns if points is None else columns.reshape(points, dim),
        sign=function.sign,
    )


class _Block(NamedTuple):
    """Rows of one point: rows x + weights z <= limits."""

    rows: sp.csr_array
    weights: sp.csr_array
    limits: Array
    costs: Array
    lowest: Array  # of the weights' columns


def _block(layers: Layers, function: ConvexFunction, max_error: float | None) -> _Block:
    slopes, intercepts = planes_of(layers, max_error, function.factor)
    slopes, intercepts = slopes[1:], intercepts[1:]  # the first is the bound z >= 0
    widths, scaling = [len(bias) for bias in layers.biases], function.scaling()
    location = function.units.location.numpy()
    num_units, starts = sum(widths), np.concatenate([[0], np.cumsum(widths)])
    is_relu = len(slopes) == 1  # z >= pre-activation; else v >= pre-activation and z >= m v + b for each plane
    total = num_units if is_relu else 2 * num_units
    weights = sp.lil_array((num_units, total))
    weights[:, total - num_units :] = -sp.eye_array(num_units)
    for index, hidden in enumerate(layers.hidden):
        weights[starts[index + 1] : starts[index + 2], starts[index] : starts[index + 1]] = hidden
    in_x = np.concatenate(layers.inputs) @ scaling
    rows, parts = [sp.csr_array(in_x)], [weights.tocsr()]
    limits = [in_x @ location - np.concatenate(layers.biases)]
    unit = sp.eye_array(num_units)
    for slope, intercept in zip(slopes, intercepts, strict=True) if not is_relu else ():
        rows.append(sp.csr_array((num_units, len(location))))
        parts.append(sp.hstack([-unit, slope * unit]).tocsr())
        limits.append(np.full(num_units, -intercept))
    if function.support is not None:
        for bound, side in zip(function.support.double().numpy(), (-1.0, 1.0), strict=True):
            finite = np.isfinite(bound)
            rows.append(sp.csr_array(side * scaling[finite]))
            parts.append(sp.csr_array((int(finite.sum()), total)))
            limits.append(side * (bound + scaling @ location)[finite])
    costs = np.concatenate([np.zeros(starts[-2]), layers.output, np.zeros(total - num_units)])
    lowest = np.concatenate([np.zeros(num_units), np.full(total - num_units, -np.inf)])
    return _Block(sp.vstack(rows).tocsr(), sp.vstack(parts).tocsr(), np.concatenate(limits), costs, lowest)
