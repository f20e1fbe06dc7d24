"""Log-partition estimators. One file each."""

from lightning_lift.partition.annealed import AnnealedImportance, AnnealedImportanceSampling
from lightning_lift.partition.base import Partition, PartitionEstimate
from lightning_lift.partition.flow_importance import FlowImportance
from lightning_lift.partition.langevin import Langevin
from lightning_lift.partition.quadrature import Quadrature

__all__ = [
    "AnnealedImportance",
    "AnnealedImportanceSampling",
    "FlowImportance",
    "Langevin",
    "Partition",
    "PartitionEstimate",
    "Quadrature",
]
