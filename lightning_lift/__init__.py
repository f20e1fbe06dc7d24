"""Training input-convex neural networks in PyTorch Lightning, with the parameterization of the weights as a plug.

The principal classes are here, and every package below, each imported when it is first asked for: networks and
parameterizations do not wait for Lightning.
"""

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_lift import (
        callbacks,
        compare,
        datamodules,
        diagnostics,
        estimators,
        flows,
        metrics,
        modules,
        networks,
        parameterizations,
        partition,
        programs,
        rescaling,
        testing,
    )
    from lightning_lift.estimators import ConvexClassifier, ConvexRegressor
    from lightning_lift.modules import (
        BrierMap,
        ConditionalConvexFlow,
        ConvexModule,
        ConvexPotentialFlow,
        ConvexRegression,
        LogConcaveEBM,
        NormalizingFlow,
    )
    from lightning_lift.networks import ICNN, PICNN, ConvexNetwork
    from lightning_lift.parameterizations import DirectSoftplus, Lift, Parameterization, ProjectedGradient
    from lightning_lift.potential import Potential

__version__ = "0.1.0"
__all__ = [
    "ICNN",
    "PICNN",
    "BrierMap",
    "ConditionalConvexFlow",
    "ConvexClassifier",
    "ConvexModule",
    "ConvexNetwork",
    "ConvexPotentialFlow",
    "ConvexRegression",
    "ConvexRegressor",
    "DirectSoftplus",
    "Lift",
    "LogConcaveEBM",
    "NormalizingFlow",
    "Parameterization",
    "Potential",
    "ProjectedGradient",
]
_HOMES = (
    "networks",
    "parameterizations",
    "potential",
    "modules",
    "estimators",
)  # the light ones first; each imports those before


def __getattr__(name: str) -> Any:
    if name in __all__:
        homes = (import_module(f"lightning_lift.{home}") for home in _HOMES)
        return next(getattr(home, name) for home in homes if hasattr(home, name))
    if find_spec(f"lightning_lift.{name}") is None:
        raise AttributeError(f"module 'lightning_lift' has no attribute {name!r}")
    return import_module(f"lightning_lift.{name}")


def __dir__() -> list[str]:
    return sorted({"__version__", *__all__, *(m.name for m in pkgutil.iter_modules(__path__) if m.name[0] != "_")})
