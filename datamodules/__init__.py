"""Data sets for density estimation, one a file.

Importing the package makes the short class names known to the command line.
"""

from datamodules.base import DensityDataModule
from datamodules.beta import BetaDataModule
from datamodules.gamma import GammaDataModule
from datamodules.gumbel import GumbelDataModule
from datamodules.half_normal import HalfNormalDataModule
from datamodules.laplace import LaplaceDataModule
from datamodules.loading import BatchLoader
from datamodules.one_dimensional import OneDimensionalDataModule
from datamodules.sampled import SampledDataModule
from datamodules.skew_normal import SkewNormalDataModule
from datamodules.tabular import TabularDataModule

__all__ = [
    "BatchLoader",
    "BetaDataModule",
    "DensityDataModule",
    "GammaDataModule",
    "GumbelDataModule",
    "HalfNormalDataModule",
    "LaplaceDataModule",
    "OneDimensionalDataModule",
    "SampledDataModule",
    "SkewNormalDataModule",
    "TabularDataModule",
]
