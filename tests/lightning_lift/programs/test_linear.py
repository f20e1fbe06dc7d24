import functools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, minimize

from lightning_lift.datamodules.units import Units
from lightning_lift.modules import ConvexRegression
from lightning_lift.networks import ICNN, PICNN, ConvexNetwork
from lightning_lift.potential import Potential
from lightning_lift.programs import linear_program, optimum
from tests.lightning_lift.programs.trained import Frozen, potential, potential_of

ROWS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("factor", [2.5, -0.5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"actnorm": True, "intercept": True},
        {"divide_by_fan_in": False, "weight_init": "principled"},
        {"increasing": [0], "decreasing": [2]},
    ],
)
def test_the_program_has_the_networks_values_in_original_units(options: dict[str, object], factor: float) -> None:
    frozen = Frozen(potential(3, activation="relu", **options), factor)
    program = linear_program(frozen)
    assert program.sign == np.sign(factor)
    found = [program.value(row) for row in ROWS.numpy()]
    np.testing.assert_allclose(found, frozen(ROWS).numpy(), rtol=1e-9, atol=1e-9)


def test_points_are_summed() -> None:
    frozen = Frozen(potential(3, activation="relu"))
    program = linear_program(frozen, points=5)
    assert program.x_columns.shape == (5, 3)
    assert program.value(ROWS.numpy()) == pytest.approx(float(frozen(ROWS).sum()), rel=1e-9)


@pytest.mark.parametrize("activation", ["softplus", "gaussian_softplus"])
@pytest.mark.parametrize("factor", [3.0, -3.0])
def test_tangent_planes_are_below_a_convex_function_and_within_the_stated_error(activation: str, factor: float) -> None:
    frozen = Frozen(potential(3, activation=activation), factor)
    program = linear_program(frozen, max_error=0.01)
    errors = np.sign(factor) * (frozen(ROWS).numpy() - [program.value(row) for row in ROWS.numpy()])
    assert errors.min() > 0.0 and errors.max() <= 0.01
    assert errors.max() > 1e-4  # not finer than it need be, either


def test_the_optimum_is_that_of_slsqp_on_the_network() -> None:
    frozen = Frozen(potential(3, activation="relu", seed=4))
    rows = LinearConstraint(np.array([[1.0, 1.0, 1.0], [1.0, -2.0, 0.5]]), [-np.inf, 0.2], [0.5, 0.2])

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = frozen.function.value_gradient(x[None])
        return float(value[0]), gradient[0]

    starts = np.random.default_rng(0).normal(size=(5, 3))
    runs = [minimize(objective, x, jac=True, method="SLSQP", constraints=rows, options={"ftol": 1e-12}) for x in starts]
    best = min(run.fun for run in runs if run.success)
    assert optimum(frozen, [rows]).value == pytest.approx(best, abs=1e-6)


def test_a_partially_convex_network_at_its_contexts() -> None:
    torch.manual_seed(2)
    network = PICNN(3, (2,), widths=(8, 6), context_width=8, activation="relu", strong_convexity=0.0, increasing=[1])
    for head in network.conditioner.heads:  # scales and shifts are constant at the start
        head.weight.data.normal_(0.0, 0.4)
    bound = potential_of(network)
    contexts = torch.randn(5, 2)
    each = [Frozen(bound.at(row[None])) for row in contexts]
    found = [linear_program(own).value(x) for own, x in zip(each, ROWS.numpy(), strict=True)]
    expected = torch.cat([own(x[None]) for own, x in zip(each, ROWS, strict=True)])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9)
    assert len({round(linear_program(own).value(ROWS[0].numpy()), 6) for own in each}) == 5
    program = linear_program(Frozen(bound), contexts, points=5)
    assert program.value(ROWS.numpy()) == pytest.approx(float(Frozen(bound.at(contexts))(ROWS).sum()), rel=1e-9)
    with pytest.raises(ValueError, match="PICNN needs a context of shape"):
        linear_program(Frozen(bound))
    with pytest.raises(ValueError, match="a context of 5 rows does not fit 2 points"):
        linear_program(Frozen(bound), contexts, points=2)


@pytest.mark.parametrize("concave", [False, True])
def test_a_regression_in_original_units(concave: bool) -> None:
    torch.manual_seed(0)
    network = functools.partial(ICNN, widths=(8, 8), activation="relu", strong_convexity=0.0)
    model = ConvexRegression(3, concave=concave, increasing=[0], network=network)
    one = torch.ones(1, dtype=torch.float64)
    model.location, model.scale = torch.tensor([5.0, -1.0, 0.0]).double(), torch.tensor([2.0, 0.5, 1.0]).double()
    model.field_units["target"] = Units(100.0 * one, 20.0 * one)
    frozen = model.freeze()
    program = linear_program(frozen)
    found = [program.value(row) for row in ROWS.numpy()]
    np.testing.assert_allclose(found, frozen(ROWS).detach().numpy(), rtol=1e-5)
    best = optimum(frozen, [LinearConstraint(np.eye(3), -1.0, 1.0)])
    assert best.residual < 1e-4 and best.x[0] == pytest.approx(1.0 if concave else -1.0)


def test_the_support_of_a_density_bounds_x() -> None:
    support = torch.tensor([[-0.5, -torch.inf, 0.1], [torch.inf, 0.4, 0.2]])
    frozen = Frozen(potential(3, activation="relu"), -1.0, support)
    program = linear_program(frozen)
    corner = torch.tensor([[0.3, 0.0, 0.15], [-0.6, 0.0, 0.15]], dtype=torch.float64)
    inside, outside = frozen.function.units.invert(corner).numpy()
    assert program.value(inside) == pytest.approx(float(frozen(torch.tensor(inside)[None])), rel=1e-9)
    with pytest.raises(ValueError, match="infeasible"):
        program.value(outside)


@pytest.mark.parametrize("ending", [".lp", ".mps"])
def test_a_written_file_is_the_same_program(ending: str, tmp_path: Path) -> None:
    highspy = pytest.importorskip("highspy")
    frozen = Frozen(potential(3, activation="relu"), -2.0)
    program = linear_program(frozen)
    path = tmp_path / f"program{ending}"
    program.write(path)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    for index, value in enumerate(ROWS[0].tolist()):
        column = solver.getColByName(f"x{index + 1}")[1]
        solver.changeColBounds(column, value, value)
    solver.run()
    assert -solver.getInfo().objective_function_value == pytest.approx(float(frozen(ROWS[:1])), rel=1e-6)
    with pytest.raises(ValueError, match=r"written as \.lp or \.mps"):
        program.write(tmp_path / "program.txt")


class Own(ConvexNetwork):
    dim = 3

    def nonnegative_names(self) -> tuple[str, ...]:
        return ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(1)


class Sine(ICNN):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sin()


def test_what_is_no_linear_program_is_one_clear_error() -> None:
    with pytest.raises(ValueError, match=r"quadratic term \(k = 0\.5\), so this is a quadratic program: use to_cvxpy"):
        linear_program(potential(3, activation="relu", strong_convexity=0.5))
    with pytest.raises(ValueError, match="Softplus is not piecewise linear: state max_error"):
        linear_program(potential(3))
    with pytest.raises(ValueError, match="more than 4096 tangents"):
        linear_program(potential(3), max_error=1e-12)
    with pytest.raises(ValueError, match="points=0"):
        linear_program(potential(3, activation="relu"), points=0)
    with pytest.raises(ValueError, match="ICNN takes no context"):
        linear_program(potential(3, activation="relu"), context=torch.zeros(1, 2))
    broken = potential(3, activation="relu")
    broken.weights["output_weight"] = broken.weights["output_weight"] - 1.0
    with pytest.raises(ValueError, match=r"output_weight of ICNN has an entry -.* the network is not convex"):
        linear_program(broken)
    with pytest.raises(TypeError, match="Own cannot be written as a program"):
        linear_program(Potential(Own(), {}))
    with pytest.raises(TypeError, match=re.escape("Sine does not compute what its layers say")):
        linear_program(potential_of(Sine(3, (4,), "relu", 0.0)))
    with pytest.raises(TypeError, match="Linear is no convex or concave function of x: give a Potential"):
        linear_program(torch.nn.Linear(3, 1))
