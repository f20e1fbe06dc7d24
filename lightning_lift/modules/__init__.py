"""LightningModules. One task a file."""

from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.density import DensityModule
from lightning_lift.modules.energy import LogConcaveEBM
from lightning_lift.modules.frozen import FrozenDensity, FrozenEnergy

__all__ = ["ConvexModule", "DensityModule", "FrozenDensity", "FrozenEnergy", "LogConcaveEBM"]
