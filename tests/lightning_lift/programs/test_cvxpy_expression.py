import builtins
from typing import Any

import numpy as np
import pytest
import torch

from lightning_lift.datamodules import HalfNormalDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.programs import optimum, to_cvxpy
from tests.lightning_lift.programs.trained import Frozen, potential

cp = pytest.importorskip("cvxpy")
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("factor", [2.0, -2.0])
@pytest.mark.parametrize("options", [{"activation": "relu"}, {"strong_convexity": "learned", "actnorm": True}])
def test_the_expression_and_its_program_have_the_networks_values(options: dict[str, Any], factor: float) -> None:
    frozen = Frozen(potential(3, intercept=True, increasing=[1], **options), factor)
    x = cp.Variable((4, 3))
    value, constraints = to_cvxpy(frozen, x)
    assert value.is_convex() == (factor > 0) and value.is_concave() == (factor < 0) and not constraints
    x.value = ROWS.numpy()
    np.testing.assert_allclose(value.value, frozen(ROWS).numpy(), rtol=1e-9)
    total = cp.sum(value)
    problem = cp.Problem(cp.Minimize(total) if factor > 0 else cp.Maximize(total), [x == ROWS.numpy()])
    problem.solve(solver=cp.CLARABEL)
    assert problem.solution.opt_val == pytest.approx(float(frozen(ROWS).sum()), abs=1e-6)


def test_an_expression_of_one_point_composes_with_other_costs_and_knows_its_curvature() -> None:
    frozen = Frozen(potential(3, activation="relu"))
    hours = cp.Variable(2)
    value, _ = to_cvxpy(frozen, np.array([[1.0, 0.0], [0.5, 1.0], [0.0, -1.0]]) @ hours)
    assert value.shape == ()
    problem = cp.Problem(cp.Minimize(value + cp.norm1(hours)), [hours >= 0.5])
    problem.solve(solver=cp.CLARABEL)
    assert problem.status == "optimal"
    with pytest.raises(cp.DCPError):
        cp.Problem(cp.Maximize(value)).solve()
    with pytest.raises(TypeError, match="affine"):
        to_cvxpy(frozen, cp.square(cp.Variable(3)))
    with pytest.raises(ValueError, match="the network takes 3 inputs"):
        to_cvxpy(frozen, cp.Variable(4))


def test_the_mode_of_a_density_in_original_units_inside_its_support() -> None:
    data = HalfNormalDataModule(batch_size=64, num_train=64)
    data.setup("fit")
    model = LogConcaveEBM(dim=1)
    model.adopt_units(data)
    density = model.freeze()
    found = optimum(density)
    grid = torch.linspace(-1.0, 7.0, 4001, dtype=torch.float64).unsqueeze(1)
    values = density.log_prob(grid)
    assert found.value == pytest.approx(float(values.max()), abs=1e-4)
    assert found.x == pytest.approx(grid[values.argmax()].numpy(), abs=0.01) and found.residual < 1e-4
    _, constraints = to_cvxpy(density, cp.Variable(1))
    assert len(constraints) == int(torch.isfinite(density.support).sum()) > 0
    with pytest.raises(TypeError, match=r"LogConcaveEBM is no convex or concave function of x: give model.freeze\(\)"):
        to_cvxpy(model, cp.Variable(1))


def test_a_missing_extra_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "cvxpy":
            raise ImportError(name)
        return genuine(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'lightning-lift\[cvxpy\]'"):
        to_cvxpy(potential(3), None)
