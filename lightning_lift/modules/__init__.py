"""LightningModules. One task a file."""

from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.classifier import ReLUClassifier
from lightning_lift.modules.density import DensityModule
from lightning_lift.modules.energy import LogConcaveEBM
from lightning_lift.modules.frozen import FrozenDensity, FrozenEnergy
from lightning_lift.modules.relu_networks import ReLUConvNet, ReLUMLP

__all__ = [
    "ConvexModule",
    "DensityModule",
    "FrozenDensity",
    "FrozenEnergy",
    "LogConcaveEBM",
    "ReLUClassifier",
    "ReLUConvNet",
    "ReLUMLP",
]
