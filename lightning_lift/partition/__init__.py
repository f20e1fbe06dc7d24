"""Log-partition estimators. One file each."""

from lightning_lift.partition.base import Partition, PartitionEstimate
from lightning_lift.partition.quadrature import Quadrature

__all__ = ["Partition", "PartitionEstimate", "Quadrature"]
