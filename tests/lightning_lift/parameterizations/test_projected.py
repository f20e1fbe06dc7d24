import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Parameterization, ProjectedGradient
from lightning_lift.testing import ParameterizationContract


class TestProjectedGradient(ParameterizationContract):
    def make(self) -> Parameterization:
        return ProjectedGradient()


class TestProjectedGradientWithFloor(ParameterizationContract):
    def make(self) -> Parameterization:
        return ProjectedGradient(floor=1e-4)


def test_projection_is_the_nearest_feasible_point() -> None:
    projected = ProjectedGradient(floor=0.1).bind(ICNN(1, (4, 4)))
    raw = torch.randn(projected.num_weights)
    projected.flat_weights.data.copy_(raw)
    assert not projected.is_feasible()
    projected.project_()
    assert torch.equal(projected.flat_weights, raw.clamp(min=0.1))
    assert projected.is_feasible()


@pytest.mark.parametrize("floor", [-0.1, float("inf"), float("nan")])
def test_bad_floor_is_named(floor: float) -> None:
    with pytest.raises(ValueError, match=f"floor={floor}"):
        ProjectedGradient(floor)
