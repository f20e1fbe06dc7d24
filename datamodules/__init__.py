"""Data sets, one a file: for density estimation, and for classification.

Importing the package makes the short class names known to the command line.
"""

from datamodules.autoencoder import ConvAutoencoder
from datamodules.base import DensityDataModule
from datamodules.beta import BetaDataModule
from datamodules.checkerboard import CheckerboardDataModule
from datamodules.cifar10 import CIFAR10DataModule
from datamodules.correlated_gaussian import CorrelatedGaussianDataModule
from datamodules.eight_gaussians import EightGaussiansDataModule
from datamodules.gamma import GammaDataModule
from datamodules.gumbel import GumbelDataModule
from datamodules.half_normal import HalfNormalDataModule
from datamodules.hepmass import HEPMASSDataModule
from datamodules.labelled import LabelledDataModule
from datamodules.laplace import LaplaceDataModule
from datamodules.loading import BatchLoader
from datamodules.maf_table import MAFTableDataModule
from datamodules.mnist import MNISTDataModule
from datamodules.mnist_latents import MNISTLatentsDataModule
from datamodules.moons import MoonsDataModule
from datamodules.one_dimensional import OneDimensionalDataModule
from datamodules.pinwheel import PinwheelDataModule
from datamodules.product import ProductDataModule
from datamodules.rings import RingsDataModule
from datamodules.sampled import SampledDataModule
from datamodules.skew_normal import SkewNormalDataModule
from datamodules.swiss_roll import SwissRollDataModule
from datamodules.tabular import TabularDataModule
from datamodules.two_moons import TwoMoonsDataModule
from datamodules.two_spirals import TwoSpiralsDataModule

__all__ = [
    "BatchLoader",
    "BetaDataModule",
    "CIFAR10DataModule",
    "CheckerboardDataModule",
    "ConvAutoencoder",
    "CorrelatedGaussianDataModule",
    "DensityDataModule",
    "EightGaussiansDataModule",
    "GammaDataModule",
    "GumbelDataModule",
    "HEPMASSDataModule",
    "HalfNormalDataModule",
    "LabelledDataModule",
    "LaplaceDataModule",
    "MAFTableDataModule",
    "MNISTDataModule",
    "MNISTLatentsDataModule",
    "MoonsDataModule",
    "OneDimensionalDataModule",
    "PinwheelDataModule",
    "ProductDataModule",
    "RingsDataModule",
    "SampledDataModule",
    "SkewNormalDataModule",
    "SwissRollDataModule",
    "TabularDataModule",
    "TwoMoonsDataModule",
    "TwoSpiralsDataModule",
]
