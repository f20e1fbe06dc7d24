"""Parameterizations: how the nonnegative weights are stored and trained. One file each."""

from lightning_lift.parameterizations.base import Parameterization
from lightning_lift.parameterizations.direct import DirectSoftplus
from lightning_lift.parameterizations.lift import Lift
from lightning_lift.parameterizations.projected import ProjectedGradient

__all__ = ["DirectSoftplus", "Lift", "Parameterization", "ProjectedGradient"]
