"""Torchmetrics of density models, distances between two samples, and what they rest on."""

from lightning_lift.metrics.classifier_two_sample import classifier_two_sample
from lightning_lift.metrics.gaussian import best_gaussian
from lightning_lift.metrics.likelihood import NegativeLogLikelihood, NegativeLogLikelihoodStandardError
from lightning_lift.metrics.row_moments import RowMoments
from lightning_lift.metrics.transport import l2_uvp, transport_cosine
from lightning_lift.metrics.two_sample import energy_distance, maximum_mean_discrepancy

__all__ = [
    "NegativeLogLikelihood",
    "NegativeLogLikelihoodStandardError",
    "RowMoments",
    "best_gaussian",
    "classifier_two_sample",
    "energy_distance",
    "l2_uvp",
    "maximum_mean_discrepancy",
    "transport_cosine",
]
