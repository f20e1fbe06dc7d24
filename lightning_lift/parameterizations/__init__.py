"""Parameterizations: how the nonnegative weights are stored and trained. One file each."""

from lightning_lift.parameterizations.admm import ADMM
from lightning_lift.parameterizations.base import Parameterization
from lightning_lift.parameterizations.controls import LearnedCode, NoBody, NoSlack
from lightning_lift.parameterizations.direct import DirectGain, DirectSoftplus
from lightning_lift.parameterizations.direct_noise import DirectNoise
from lightning_lift.parameterizations.lift import Lift
from lightning_lift.parameterizations.other_batches import FrozenBatch, IndependentBatch
from lightning_lift.parameterizations.projected import ProjectedGradient

__all__ = [
    "ADMM",
    "DirectGain",
    "DirectNoise",
    "DirectSoftplus",
    "FrozenBatch",
    "IndependentBatch",
    "LearnedCode",
    "Lift",
    "NoBody",
    "NoSlack",
    "Parameterization",
    "ProjectedGradient",
]
