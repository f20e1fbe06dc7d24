"""Callbacks: thin, each schedules a diagnostic and writes what it gave."""

from lightning_lift.callbacks.cross_covariance import CrossCovariance
from lightning_lift.callbacks.density_figure import DensityFigure
from lightning_lift.callbacks.flow_figure import FlowFigure
from lightning_lift.callbacks.last_checkpoint import LastCheckpoint
from lightning_lift.callbacks.latent_images import LatentImages
from lightning_lift.callbacks.latent_step import LatentStep
from lightning_lift.callbacks.path_conditioning import PathConditioning
from lightning_lift.callbacks.periodic import PeriodicCallback
from lightning_lift.callbacks.posterior_figure import PosteriorFigure
from lightning_lift.callbacks.prediction_writer import PredictionWriter
from lightning_lift.callbacks.run_summary import RunSummary
from lightning_lift.callbacks.sample_distance import SampleDistance
from lightning_lift.callbacks.shoulder_occupancy import ShoulderOccupancy
from lightning_lift.callbacks.shoulder_visits import ShoulderVisits
from lightning_lift.callbacks.trailing_cross_covariance import TrailingCrossCovariance
from lightning_lift.callbacks.transport_figure import TransportFigure
from lightning_lift.callbacks.update_noise import UpdateNoise
from lightning_lift.callbacks.weight_histograms import WeightHistograms

__all__ = [
    "CrossCovariance",
    "DensityFigure",
    "FlowFigure",
    "LastCheckpoint",
    "LatentImages",
    "LatentStep",
    "PathConditioning",
    "PeriodicCallback",
    "PosteriorFigure",
    "PredictionWriter",
    "RunSummary",
    "SampleDistance",
    "ShoulderOccupancy",
    "ShoulderVisits",
    "TrailingCrossCovariance",
    "TransportFigure",
    "UpdateNoise",
    "WeightHistograms",
]  # fmt: skip
