"""Torchmetrics of density models, thin over the pure functions of ``lightning_lift.metrics.functional``."""

from lightning_lift.metrics.distances import GridDistance, HellingerDistance, KLDivergence, TotalVariation
from lightning_lift.metrics.likelihood import NegativeLogLikelihood, NegativeLogLikelihoodStandardError
from lightning_lift.metrics.samples import EnergyDistance, MaximumMeanDiscrepancy, SampleDistance
from lightning_lift.metrics.two_sample import energy_distance, maximum_mean_discrepancy

__all__ = [
    "EnergyDistance",
    "GridDistance",
    "HellingerDistance",
    "KLDivergence",
    "MaximumMeanDiscrepancy",
    "NegativeLogLikelihood",
    "NegativeLogLikelihoodStandardError",
    "SampleDistance",
    "TotalVariation",
    "energy_distance",
    "maximum_mean_discrepancy",
]
