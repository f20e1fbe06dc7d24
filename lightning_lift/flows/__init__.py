"""Convex potential flows: their log-determinants, their inverses, and their maps."""

from lightning_lift.flows.conjugate_gradients import ConjugateGradients, conjugate_gradients
from lightning_lift.flows.inverse import (
    ConvexConjugate,
    InverseResult,
    convex_conjugate,
    default_tolerance,
    implicit_inverse,
    invert,
)
from lightning_lift.flows.logdet import (
    ExactLogDet,
    LogDet,
    LogDetResult,
    StochasticLogDet,
    choose_logdet,
    make_logdet,
)
from lightning_lift.flows.nflows_adapter import ConvexPotentialTransform, make_flow
from lightning_lift.flows.transform import FlowBlock, FlowMap, FlowStage

__all__ = [
    "ConjugateGradients",
    "ConvexConjugate",
    "ConvexPotentialTransform",
    "ExactLogDet",
    "FlowBlock",
    "FlowMap",
    "FlowStage",
    "InverseResult",
    "LogDet",
    "LogDetResult",
    "StochasticLogDet",
    "choose_logdet",
    "conjugate_gradients",
    "convex_conjugate",
    "default_tolerance",
    "implicit_inverse",
    "invert",
    "make_flow",
    "make_logdet",
]
