import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, minimize

from lightning_lift.datamodules.units import Units
from lightning_lift.networks import ICNN
from lightning_lift.potential import Potential
from lightning_lift.programs import ConvexFunction, certify, optimum
from tests.lightning_lift.programs.trained import Frozen, potential, potential_of


def distance(place: float = 0.3) -> Potential:
    """|x - place| as a relu network."""
    network = ICNN(1, (2,), "relu", 0.0, divide_by_fan_in=False)
    network.layers[0].input_weight.data[:] = torch.tensor([[1.0], [-1.0]])
    network.layers[0].bias.data[:] = torch.tensor([-place, place])
    network.output_weight.data.fill_(1.0)
    network.output_input_weight.data.zero_()
    return potential_of(network)


def test_a_known_minimum_and_its_certificate() -> None:
    found = optimum(distance())
    assert found.x == pytest.approx([0.3]) and found.value == pytest.approx(0.0, abs=1e-7) and found.residual < 1e-9
    assert certify(distance(), np.array([1.0]), 0.7).residual == pytest.approx(1.0)  # the slope there
    bounded = optimum(distance(), [Bounds(0.5, 2.0)])
    assert optimum(distance(), Bounds(0.5, 2.0)).x == bounded.x == pytest.approx([0.5]) and bounded.residual < 1e-9
    # a bound on the other side holds nothing back
    assert certify(distance(), np.array([0.5]), 0.2, [Bounds(-1.0, 0.5)]).residual == pytest.approx(1.0)
    outside = certify(distance(), np.array([0.3]), 0.0, [LinearConstraint([[2.0]], 1.0, np.inf)])
    assert outside.violation == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("activation", "factor"), [("softplus", 1.5), ("softplus", -1.5), ("relu", 1.5), ("gaussian_softplus", -1.5)]
)
def test_quadratic_terms_and_smooth_networks_agree_with_a_descent_on_the_network(
    activation: str, factor: float
) -> None:
    frozen = Frozen(potential(4, activation=activation, strong_convexity="learned", actnorm=True), factor)
    error = 1e-3 if activation == "gaussian_softplus" else None
    box = Bounds(-1.0, [2.0, 0.1, 2.0, 2.0])
    found = optimum(frozen, [box], max_error=error)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = frozen.function.value_gradient(x[None])
        return np.sign(factor) * float(value[0]), np.sign(factor) * gradient[0]

    options = {"ftol": 1e-14, "gtol": 1e-7, "maxiter": 300}
    best = min(
        minimize(objective, x, jac=True, method="L-BFGS-B", bounds=box, options=options).fun
        for x in np.random.default_rng(0).uniform(-1.0, 0.1, (2, 4))
    )
    assert np.sign(factor) * found.value == pytest.approx(best, abs=1e-5 if error is None else error)
    # f is within 1e-8 of its optimum, and a slope is off by the root of that
    assert found.gap <= (error or 1e-7) and found.residual < (1e-4 if error is None else 0.1)


@pytest.mark.parametrize("activation", ["softplus", "relu"])
def test_large_means_and_targets_are_no_affair_of_the_solvers(activation: str) -> None:
    inner = potential(3, activation=activation, strong_convexity=0.1)
    units = Units(torch.tensor([1e6, -1e5, 0.0]).double(), torch.tensor([1.0, 1e-3, 100.0]).double())
    far = ConvexFunction(inner, units, 1e4, 1e7)
    found, near = optimum(far), optimum(inner)
    np.testing.assert_allclose(far.to_training(found.x[None])[0], near.x, atol=1e-4)
    assert found.value == pytest.approx(1e7 + 1e4 * near.value, rel=1e-10)


def test_several_points_share_constraints() -> None:
    shared = LinearConstraint([[1.0, 1.0]], 1.0, 1.0)  # |x1 - 0.3| + |x2 - 0.3| with x1 + x2 = 1
    found = optimum(distance(), [shared], points=2)
    assert found.x.shape == (2, 1) and found.value == pytest.approx(0.4) and found.residual < 1e-9


def test_what_has_no_optimum_is_one_clear_error() -> None:
    falling = potential(2, activation="relu")
    falling.network.output_input_weight.data[:] = -50.0
    for program in (falling, potential_of(falling.network)):
        with pytest.raises(ValueError, match="falls without end inside the constraints: bound x"):
            optimum(program)
    rising = Frozen(falling, -1.0)
    with pytest.raises(ValueError, match="rises without end"):
        optimum(rising)
    smooth = potential(2)
    smooth.network.output_input_weight.data[:] = -50.0
    with pytest.raises(ValueError, match="falls without end"):
        optimum(smooth)
    for model in (falling, smooth):
        with pytest.raises(ValueError, match="no point satisfies the constraints"):
            optimum(model, [Bounds(0.0, 1.0), LinearConstraint([[1.0, 1.0]], 3.0, 4.0)])
    with pytest.raises(ValueError, match="a constraint has 3 columns, and x has 2 entries"):
        optimum(falling, [LinearConstraint(np.eye(3), 0.0, 1.0)])
    with pytest.raises(TypeError, match="NonlinearConstraint is no linear constraint"):
        optimum(falling, [NonlinearConstraint(np.sum, 0.0, 1.0)])
    with pytest.raises(ValueError, match="a constraint has entries that are not finite"):
        optimum(falling, LinearConstraint([[1.0, np.nan]], 0.0, 1.0))
    with pytest.raises(ValueError, match="points=0"):
        optimum(falling, points=0)
    broken = potential(2)
    broken.network.layers[0].bias.data[0] = torch.nan
    with pytest.raises(ValueError, match="ICNN gives values that are not finite"):
        optimum(broken)
    with pytest.raises(ValueError, match="the network takes 2 inputs"):
        certify(falling, np.zeros(3), 0.0)


def test_an_answer_that_is_not_the_networks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ("optimal", np.array([[0.4]]), 0.0)
    monkeypatch.setattr("lightning_lift.programs.certified._by_linprog", lambda *_: wrong)
    with pytest.raises(RuntimeError, match=r"the solver states 0 and the network gives 0\.0999999"):
        optimum(distance())
