"""LightningModules. One task a file."""

from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.classifier import ReLUClassifier
from lightning_lift.modules.conditional_density import ConditionalDensityTask
from lightning_lift.modules.conditional_flow import ConditionalConvexFlow
from lightning_lift.modules.conditional_normalizing_flow import ConditionalNormalizingFlow
from lightning_lift.modules.density import DensityModule, DensityTask
from lightning_lift.modules.divergence import DivergenceError
from lightning_lift.modules.energy import LogConcaveEBM
from lightning_lift.modules.fitting import FittedModule
from lightning_lift.modules.flow import ConvexPotentialFlow
from lightning_lift.modules.frozen import (
    FrozenConditionalFlow,
    FrozenDensity,
    FrozenDistribution,
    FrozenEnergy,
    FrozenFlow,
)
from lightning_lift.modules.gradient_flow import GradientFlow
from lightning_lift.modules.likelihood import LikelihoodTask
from lightning_lift.modules.normalizing_flow import FrozenNormalizingFlow, NormalizingFlow
from lightning_lift.modules.regression import ConvexRegression
from lightning_lift.modules.regression_function import FrozenRegression, RegressionFunction
from lightning_lift.modules.relu_networks import ReLUConvNet, ReLUMLP
from lightning_lift.modules.task import TaskModule
from lightning_lift.modules.transport import BrierMap
from lightning_lift.modules.transport_map import FrozenTransport, TransportMap

__all__ = [
    "BrierMap",
    "ConditionalConvexFlow",
    "ConditionalDensityTask",
    "ConditionalNormalizingFlow",
    "ConvexModule",
    "ConvexPotentialFlow",
    "ConvexRegression",
    "DensityModule",
    "DensityTask",
    "DivergenceError",
    "FittedModule",
    "FrozenConditionalFlow",
    "FrozenDensity",
    "FrozenDistribution",
    "FrozenEnergy",
    "FrozenFlow",
    "FrozenNormalizingFlow",
    "FrozenRegression",
    "FrozenTransport",
    "GradientFlow",
    "LikelihoodTask",
    "LogConcaveEBM",
    "NormalizingFlow",
    "ReLUClassifier",
    "ReLUConvNet",
    "ReLUMLP",
    "RegressionFunction",
    "TaskModule",
    "TransportMap",
]
