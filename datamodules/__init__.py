"""Data sets, one a file: for density estimation, for tasks of several parts, and for classification.

Importing the package makes the short class names known to the command line.
"""

if __name__ != "lightning_lift.datamodules":  # a checkout's own folder, found from the working directory
    raise ImportError(f"{__name__}: the data modules of lightning_lift are imported as lightning_lift.datamodules.")

from lightning_lift.datamodules.autoencoder import ConvAutoencoder
from lightning_lift.datamodules.base import DensityDataModule
from lightning_lift.datamodules.batches import Batch, TransportBatch
from lightning_lift.datamodules.beta import BetaDataModule
from lightning_lift.datamodules.checkerboard import CheckerboardDataModule
from lightning_lift.datamodules.cifar10 import CIFAR10DataModule
from lightning_lift.datamodules.correlated_gaussian import CorrelatedGaussianDataModule
from lightning_lift.datamodules.eight_gaussians import EightGaussiansDataModule
from lightning_lift.datamodules.gamma import GammaDataModule
from lightning_lift.datamodules.gumbel import GumbelDataModule
from lightning_lift.datamodules.half_normal import HalfNormalDataModule
from lightning_lift.datamodules.hepmass import HEPMASSDataModule
from lightning_lift.datamodules.labelled import LabelledDataModule
from lightning_lift.datamodules.laplace import LaplaceDataModule
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.maf_table import MAFTableDataModule
from lightning_lift.datamodules.mnist import MNISTDataModule
from lightning_lift.datamodules.mnist_latents import MNISTLatentsDataModule
from lightning_lift.datamodules.moons import MoonsDataModule
from lightning_lift.datamodules.one_dimensional import OneDimensionalDataModule
from lightning_lift.datamodules.pairs import PairsDataModule
from lightning_lift.datamodules.parts import PartsDataModule
from lightning_lift.datamodules.pinwheel import PinwheelDataModule
from lightning_lift.datamodules.product import ProductDataModule
from lightning_lift.datamodules.rings import RingsDataModule
from lightning_lift.datamodules.sampled import SampledDataModule
from lightning_lift.datamodules.simulators import (
    DarcyDataModule,
    LinearGaussianDataModule,
    SimulatorDataModule,
    SLCPDataModule,
    TwoMoonsPosteriorDataModule,
)
from lightning_lift.datamodules.skew_normal import SkewNormalDataModule
from lightning_lift.datamodules.swiss_roll import SwissRollDataModule
from lightning_lift.datamodules.tabular import TabularDataModule
from lightning_lift.datamodules.transport import TransportDataModule
from lightning_lift.datamodules.transport_pairs import (
    GaussianPairDataModule,
    LogSumExpPairDataModule,
    W2BenchmarkDataModule,
)
from lightning_lift.datamodules.two_moons import TwoMoonsDataModule
from lightning_lift.datamodules.two_spirals import TwoSpiralsDataModule
from lightning_lift.datamodules.units import Units

__all__ = [
    "Batch",
    "BatchLoader",
    "BetaDataModule",
    "CIFAR10DataModule",
    "CheckerboardDataModule",
    "ConvAutoencoder",
    "CorrelatedGaussianDataModule",
    "DarcyDataModule",
    "DensityDataModule",
    "EightGaussiansDataModule",
    "GammaDataModule",
    "GaussianPairDataModule",
    "GumbelDataModule",
    "HEPMASSDataModule",
    "HalfNormalDataModule",
    "LabelledDataModule",
    "LaplaceDataModule",
    "LinearGaussianDataModule",
    "LogSumExpPairDataModule",
    "MAFTableDataModule",
    "MNISTDataModule",
    "MNISTLatentsDataModule",
    "MoonsDataModule",
    "OneDimensionalDataModule",
    "PairsDataModule",
    "PartsDataModule",
    "PinwheelDataModule",
    "ProductDataModule",
    "RingsDataModule",
    "SLCPDataModule",
    "SampledDataModule",
    "SimulatorDataModule",
    "SkewNormalDataModule",
    "SwissRollDataModule",
    "TabularDataModule",
    "TransportBatch",
    "TransportDataModule",
    "TwoMoonsDataModule",
    "TwoMoonsPosteriorDataModule",
    "TwoSpiralsDataModule",
    "Units",
    "W2BenchmarkDataModule",
]
