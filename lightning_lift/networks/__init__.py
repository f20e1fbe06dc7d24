"""Convex networks. They know nothing of how their weights are kept nonnegative."""

from lightning_lift.networks.actnorm import ActNorm
from lightning_lift.networks.base import ConvexNetwork, Derivatives
from lightning_lift.networks.flow_icnn import FlowICNN
from lightning_lift.networks.icnn import ICNN
from lightning_lift.networks.picnn import PICNN

__all__ = ["ICNN", "PICNN", "ActNorm", "ConvexNetwork", "Derivatives", "FlowICNN"]
