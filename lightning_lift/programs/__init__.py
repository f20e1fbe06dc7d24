"""A trained convex network inside a convex program: minimise over what was learned, with a solver's certainty."""

from lightning_lift.programs.certified import Optimum, certify, optimum
from lightning_lift.programs.cvxpy_expression import to_cvxpy
from lightning_lift.programs.function import ConvexFunction
from lightning_lift.programs.linear import LinearProgram, linear_program

__all__ = ["ConvexFunction", "LinearProgram", "Optimum", "certify", "linear_program", "optimum", "to_cvxpy"]
