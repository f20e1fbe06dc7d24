"""Short names of the parameterizations for the command line: ``--model.parameterization pgd|direct|lift``.

They are lower-case subclasses because jsonargparse resolves classes by name and stores the class path; a Literal or a
factory function in that slot would not survive in the hyperparameters.
"""

from lightning_lift.parameterizations.direct import DirectSoftplus
from lightning_lift.parameterizations.lift import Lift
from lightning_lift.parameterizations.projected import ProjectedGradient


class pgd(ProjectedGradient):
    """Short name of ``ProjectedGradient``."""

    __doc__ = ProjectedGradient.__doc__


class direct(DirectSoftplus):
    """Short name of ``DirectSoftplus``."""

    __doc__ = DirectSoftplus.__doc__


class lift(Lift):
    """Short name of ``Lift``."""

    __doc__ = Lift.__doc__
