"""Diagnostics: pure functions on tensors and potentials. They import no callback, module or trainer."""

from lightning_lift.diagnostics.architectures import ArchitectureReading, FollowedMovement, architecture_reading
from lightning_lift.diagnostics.calibration_figure import calibration_figure
from lightning_lift.diagnostics.convexity import (
    LeastCurvature,
    jensen_gap,
    least_eigenvalues,
    search_least_eigenvalue,
    worst_jensen_gap,
)
from lightning_lift.diagnostics.cross_covariance import CrossCovarianceResult, Reading, read_cross_covariance
from lightning_lift.diagnostics.escape import (
    FirstPassage,
    exit_slope,
    log_laplace_exit_time,
    log_mean_exit_time,
    simulate_first_passage,
)
from lightning_lift.diagnostics.escape_problems import EscapeProblem, ShoulderNoise, double_well, make_problem
from lightning_lift.diagnostics.landscape import (
    Plane,
    filter_normalized,
    grid_coordinates,
    plane_through,
    principal_plane,
    slice_axes,
)
from lightning_lift.diagnostics.latent_hessian import hessian_products
from lightning_lift.diagnostics.latent_step import latent_of, latent_step
from lightning_lift.diagnostics.posterior_ranks import (
    ExpectedCoverage,
    RankStatistics,
    expected_coverage,
    rank_statistics,
)
from lightning_lift.diagnostics.probe import ProbeRows, collect, probe_cross_covariance, probe_row, undisturbed
from lightning_lift.diagnostics.shoulder import (
    SHOULDER_SLOPE,
    Transitions,
    floor_mask,
    occupancy,
    occupancy_by_tensor,
    shoulder_mask,
    shoulder_threshold,
    transitions,
)
from lightning_lift.diagnostics.survival import SurvivalCurve, kaplan_meier_of_counts
from lightning_lift.diagnostics.trailing_window import TrailingWindow, read_window
from lightning_lift.diagnostics.update_noise import NoiseReading, noise_directions, update_noise
from lightning_lift.diagnostics.visits import VisitCounter, VisitSummary
from lightning_lift.diagnostics.weight_spaces import (
    GivenWeights,
    NetworkSpace,
    TrainedSpace,
    evaluation_loss,
    network_weights,
)

__all__ = [
    "SHOULDER_SLOPE", "ArchitectureReading", "CrossCovarianceResult", "EscapeProblem", "ExpectedCoverage",
    "FirstPassage", "FollowedMovement", "GivenWeights", "LeastCurvature", "NetworkSpace", "NoiseReading", "Plane",
    "ProbeRows", "RankStatistics", "Reading", "ShoulderNoise", "SurvivalCurve", "TrailingWindow", "TrainedSpace",
    "Transitions", "VisitCounter", "VisitSummary", "architecture_reading", "calibration_figure", "collect",
    "double_well", "evaluation_loss", "exit_slope", "expected_coverage", "filter_normalized", "floor_mask",
    "grid_coordinates", "hessian_products", "jensen_gap", "kaplan_meier_of_counts", "latent_of", "latent_step",
    "least_eigenvalues", "log_laplace_exit_time", "log_mean_exit_time", "make_problem", "network_weights",
    "noise_directions", "occupancy", "occupancy_by_tensor", "plane_through", "principal_plane",
    "probe_cross_covariance", "probe_row", "rank_statistics", "read_cross_covariance", "read_window",
    "search_least_eigenvalue", "shoulder_mask", "shoulder_threshold", "simulate_first_passage", "slice_axes",
    "transitions", "undisturbed", "update_noise", "worst_jensen_gap",
]  # fmt: skip
