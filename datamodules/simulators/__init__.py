"""Simulators with their priors, one a file: pairs of parameters and data, to learn posteriors from."""

from lightning_lift.datamodules.simulators.base import SimulatorDataModule
from lightning_lift.datamodules.simulators.darcy import DarcyDataModule
from lightning_lift.datamodules.simulators.linear_gaussian import LinearGaussianDataModule
from lightning_lift.datamodules.simulators.slcp import SLCPDataModule
from lightning_lift.datamodules.simulators.two_moons import TwoMoonsPosteriorDataModule

__all__ = [
    "DarcyDataModule",
    "LinearGaussianDataModule",
    "SLCPDataModule",
    "SimulatorDataModule",
    "TwoMoonsPosteriorDataModule",
]
