"""Function-preserving rescaling of ReLU networks: path conditioning and equinormalization."""

from lightning_lift.rescaling.apply import rescale_factors, transport_optimizer_state_
from lightning_lift.rescaling.equinormalization import equinormalization
from lightning_lift.rescaling.path_conditioning import path_conditioning
from lightning_lift.rescaling.path_kernel import path_kernel_diagonal
from lightning_lift.rescaling.report import DiagonalCondition, RescalingReport
from lightning_lift.rescaling.rescale import rescale_
from lightning_lift.rescaling.tracing import UntraceableModelError
from lightning_lift.rescaling.unit_graph import LeftAlone, UnitBlock, UnitGraph, build_unit_graph
from lightning_lift.rescaling.whole_module import ModuleRescaling, rescale_module_, transport_states_

__all__ = [
    "DiagonalCondition", "LeftAlone", "ModuleRescaling", "RescalingReport", "UnitBlock", "UnitGraph",
    "UntraceableModelError", "build_unit_graph", "equinormalization", "path_conditioning", "path_kernel_diagonal",
    "rescale_", "rescale_factors", "rescale_module_", "transport_optimizer_state_", "transport_states_",
]  # fmt: skip
