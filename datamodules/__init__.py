"""Data sets, one a file: for density estimation, and for classification.

Importing the package makes the short class names known to the command line.
"""

from datamodules.autoencoder import ConvAutoencoder
from datamodules.base import DensityDataModule
from datamodules.beta import BetaDataModule
from datamodules.cifar10 import CIFAR10DataModule
from datamodules.gamma import GammaDataModule
from datamodules.gumbel import GumbelDataModule
from datamodules.half_normal import HalfNormalDataModule
from datamodules.labelled import LabelledDataModule
from datamodules.laplace import LaplaceDataModule
from datamodules.loading import BatchLoader
from datamodules.mnist import MNISTDataModule
from datamodules.one_dimensional import OneDimensionalDataModule
from datamodules.sampled import SampledDataModule
from datamodules.skew_normal import SkewNormalDataModule
from datamodules.tabular import TabularDataModule
from datamodules.two_moons import TwoMoonsDataModule

__all__ = [
    "BatchLoader",
    "BetaDataModule",
    "CIFAR10DataModule",
    "ConvAutoencoder",
    "DensityDataModule",
    "GammaDataModule",
    "GumbelDataModule",
    "HalfNormalDataModule",
    "LabelledDataModule",
    "LaplaceDataModule",
    "MNISTDataModule",
    "OneDimensionalDataModule",
    "SampledDataModule",
    "SkewNormalDataModule",
    "TabularDataModule",
    "TwoMoonsDataModule",
]
