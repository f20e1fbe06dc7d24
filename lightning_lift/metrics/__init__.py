"""Torchmetrics of density models, thin over the pure functions of ``lightning_lift.metrics.functional``."""

from lightning_lift.metrics.distances import GridDistance, HellingerDistance, KLDivergence, TotalVariation
from lightning_lift.metrics.likelihood import NegativeLogLikelihood, NegativeLogLikelihoodStandardError

__all__ = [
    "GridDistance",
    "HellingerDistance",
    "KLDivergence",
    "NegativeLogLikelihood",
    "NegativeLogLikelihoodStandardError",
    "TotalVariation",
]
