"""Diagnostics: pure functions on tensors and potentials. They import no callback, module or trainer."""

from lightning_lift.diagnostics.convexity import (
    LeastCurvature,
    jensen_gap,
    least_eigenvalues,
    search_least_eigenvalue,
    worst_jensen_gap,
)
from lightning_lift.diagnostics.cross_covariance import CrossCovarianceResult, Reading, read_cross_covariance
from lightning_lift.diagnostics.probe import ProbeRows, collect, probe_cross_covariance, undisturbed
from lightning_lift.diagnostics.shoulder import (
    SHOULDER_SLOPE,
    Transitions,
    exact_zero_fraction,
    floor_mask,
    occupancy,
    occupancy_by_tensor,
    shoulder_mask,
    shoulder_threshold,
    transitions,
)

__all__ = [
    "SHOULDER_SLOPE",
    "CrossCovarianceResult",
    "LeastCurvature",
    "ProbeRows",
    "Reading",
    "Transitions",
    "collect",
    "exact_zero_fraction",
    "floor_mask",
    "jensen_gap",
    "least_eigenvalues",
    "occupancy",
    "occupancy_by_tensor",
    "probe_cross_covariance",
    "read_cross_covariance",
    "search_least_eigenvalue",
    "shoulder_mask",
    "shoulder_threshold",
    "transitions",
    "undisturbed",
    "worst_jensen_gap",
]
