"""Torchmetrics of density models, and the distances of ``functional`` and ``two_sample``."""

from lightning_lift.metrics.gaussian import best_gaussian
from lightning_lift.metrics.likelihood import NegativeLogLikelihood, NegativeLogLikelihoodStandardError
from lightning_lift.metrics.two_sample import energy_distance, maximum_mean_discrepancy

__all__ = [
    "NegativeLogLikelihood",
    "NegativeLogLikelihoodStandardError",
    "best_gaussian",
    "energy_distance",
    "maximum_mean_discrepancy",
]
