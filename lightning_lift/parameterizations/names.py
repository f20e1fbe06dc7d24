"""Short names of the parameterizations for the command line: ``--model.parameterization pgd|direct|lift|...``.

They are lower-case subclasses because jsonargparse resolves classes by name and stores the class path; a Literal or a
factory function in that slot would not survive in the hyperparameters.
"""

from lightning_lift.parameterizations.admm import ADMM
from lightning_lift.parameterizations.controls import LearnedCode, NoBody, NoSlack
from lightning_lift.parameterizations.direct import DirectGain, DirectSoftplus
from lightning_lift.parameterizations.direct_noise import DirectNoise
from lightning_lift.parameterizations.lift import Lift
from lightning_lift.parameterizations.other_batches import FrozenBatch, IndependentBatch
from lightning_lift.parameterizations.projected import ProjectedGradient


class pgd(ProjectedGradient):
    """Short name of ``ProjectedGradient``."""

    __doc__ = ProjectedGradient.__doc__


class direct(DirectSoftplus):
    """Short name of ``DirectSoftplus``."""

    __doc__ = DirectSoftplus.__doc__


class direct_gain(DirectGain):
    """Short name of ``DirectGain``."""

    __doc__ = DirectGain.__doc__


class lift(Lift):
    """Short name of ``Lift``."""

    __doc__ = Lift.__doc__


class no_slack(NoSlack):
    """Short name of ``NoSlack``."""

    __doc__ = NoSlack.__doc__


class no_body(NoBody):
    """Short name of ``NoBody``."""

    __doc__ = NoBody.__doc__


class frozen_batch(FrozenBatch):
    """Short name of ``FrozenBatch``."""

    __doc__ = FrozenBatch.__doc__


class independent_batch(IndependentBatch):
    """Short name of ``IndependentBatch``."""

    __doc__ = IndependentBatch.__doc__


class learned_code(LearnedCode):
    """Short name of ``LearnedCode``."""

    __doc__ = LearnedCode.__doc__


class direct_noise(DirectNoise):
    """Short name of ``DirectNoise``."""

    __doc__ = DirectNoise.__doc__


class admm(ADMM):
    """Short name of ``ADMM``."""

    __doc__ = ADMM.__doc__
