import math

import numpy as np
import pytest
import torch
from scipy import integrate

from lightning_lift.diagnostics.escape import (
    exit_slope,
    log_laplace_exit_time,
    log_mean_exit_time,
    simulate_first_passage,
    time_step,
)
from lightning_lift.diagnostics.escape_problems import EscapeProblem, double_well, shoulder

PROBLEMS = {"double_well": double_well(1.0), "shoulder": shoulder(1.0)}


def linear(slope: float, length: float = 1.0, start: float = 0.0) -> EscapeProblem:
    """U = slope w on [0, length]."""
    return EscapeProblem(
        "linear", lambda w: slope * w, lambda w: torch.full_like(w, slope), start, 0.0, length, 0.0, length
    )


def linear_time(slope: float, length: float, start: float, s2: float) -> float:
    """T(x) solved by hand: (b - x) falls along -1/slope, the boundary layer at a gives the exponentials."""
    if slope == 0.0:
        return (length**2 - start**2) / s2
    rate = 2.0 * slope / s2
    return (math.exp(rate * length) - math.exp(rate * start)) * s2 / (2.0 * slope**2) - (length - start) / slope


@pytest.mark.parametrize("start", [0.0, 0.37])
@pytest.mark.parametrize(("slope", "s2"), [(0.0, 0.5), (1.0, 1.0), (1.0, 0.1), (-2.0, 0.3)])
def test_closed_form_of_a_linear_potential(slope: float, s2: float, start: float) -> None:
    found = math.exp(log_mean_exit_time(linear(slope, start=start), s2))
    assert found == pytest.approx(linear_time(slope, 1.0, start, s2), rel=1e-10)


@pytest.mark.parametrize("s2", [2.0, 0.5, 0.2])
@pytest.mark.parametrize("name", PROBLEMS)
def test_closed_form_against_adaptive_quadrature(name: str, s2: float) -> None:
    problem = PROBLEMS[name]

    def value(w: float) -> float:
        return float(problem.value(torch.tensor([w], dtype=torch.float64)))

    def inner(y: float) -> float:
        return integrate.quad(lambda z: math.exp(2.0 * (value(y) - value(z)) / s2), problem.reflecting, y, limit=200)[0]

    expected = 2.0 / s2 * integrate.quad(inner, problem.start, problem.absorbing, limit=200)[0]
    assert math.exp(log_mean_exit_time(problem, s2)) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", PROBLEMS)
def test_closed_form_against_the_differential_equation(name: str) -> None:
    """(s2/2) T'' - U' T' = -1 with T'(a) = 0 and T(b) = 0."""
    problem, s2 = PROBLEMS[name], 0.6

    def right_hand_side(w, y):
        gradient = problem.gradient(torch.from_numpy(w)).numpy()
        return np.vstack([y[1], 2.0 / s2 * (gradient * y[1] - 1.0)])

    def ends(left, right):
        return np.array([left[1], right[0]])

    mesh = np.linspace(problem.reflecting, problem.absorbing, 400)
    solution = integrate.solve_bvp(right_hand_side, ends, mesh, np.ones((2, 400)), tol=1e-8, max_nodes=20_000)
    assert solution.success
    assert math.exp(log_mean_exit_time(problem, s2)) == pytest.approx(float(solution.sol(problem.start)[0]), rel=1e-5)


@pytest.mark.parametrize("name", PROBLEMS)
def test_small_noise_neither_overflows_nor_loses_digits(name: str) -> None:
    problem = PROBLEMS[name]
    for exponent in (100.0, 1000.0, 10_000.0):
        s2 = 2.0 / exponent
        error = log_mean_exit_time(problem, s2) - log_laplace_exit_time(problem, s2)
        assert abs(error) < 6.0 / exponent  # Laplace's next term is of the order s2
    with pytest.raises(ValueError, match="too small for quadrature"):
        log_mean_exit_time(problem, 1e-7)


@pytest.mark.parametrize(("name", "power"), [("double_well", 0.0), ("shoulder", 1.0)])
def test_slope_tends_to_twice_the_barrier_with_the_prefactors_bias(name: str, power: float) -> None:
    problem = PROBLEMS[name]
    for s2 in (0.02, 0.01):
        slope = exit_slope(problem, s2, log_mean_exit_time)
        assert slope == pytest.approx(2.0, rel=0.05)
        assert exit_slope(problem, s2, log_laplace_exit_time) == pytest.approx(2.0 - power * s2, rel=1e-5)
        assert slope == pytest.approx(2.0 - power * s2, abs=5.0 * s2**2)
    # At the noise that can be simulated it is not there yet.
    assert abs(exit_slope(PROBLEMS["shoulder"], 0.4, log_mean_exit_time) / 2.0 - 1.0) > 0.1


def test_kramers_prefactor_of_the_double_well() -> None:
    s2 = 0.01
    kramers = math.log(2.0 * math.pi / math.sqrt(8.0 * 4.0)) + 2.0 / s2
    assert log_laplace_exit_time(PROBLEMS["double_well"], s2) == pytest.approx(kramers, rel=1e-8)


@pytest.mark.parametrize("name", PROBLEMS)
def test_simulation_agrees_with_the_closed_form(name: str) -> None:
    problem = PROBLEMS[name]
    s2 = [2.0, 0.8]
    for result in simulate_first_passage(problem, s2, num_paths=3000, seed=1):
        expected = math.exp(log_mean_exit_time(problem, result.s2))
        assert result.num_censored == 0
        assert 0.005 < result.standard_error / expected < 0.03  # an exponential law gives 1/sqrt(3000) = 0.018
        assert abs(result.mean - expected) < 3.5 * result.standard_error


def test_both_ends_are_exact_without_drift() -> None:
    """Brownian motion: steps of a tenth of the way, and no bias of the order of the noise of a step."""
    (result,) = simulate_first_passage(linear(0.0), [1.0], 40_000, time_steps=[0.01])
    assert result.mean == pytest.approx(1.0, abs=3.5 * result.standard_error)
    assert result.standard_error == pytest.approx(math.sqrt(2.0 / 3.0 / 40_000), rel=0.03)  # Var tau = 2/3


def test_reflection_against_a_drift_into_the_wall() -> None:
    problem = linear(2.0)
    (result,) = simulate_first_passage(problem, [1.0], 20_000, time_steps=[0.01])
    expected = linear_time(2.0, 1.0, 0.0, 1.0)
    assert abs(result.mean - expected) < 3.5 * result.standard_error


def test_seed_determines_the_paths_and_the_global_generator_is_left_alone() -> None:
    problem = PROBLEMS["shoulder"]
    state = torch.get_rng_state()
    ended: list[int] = []
    first = simulate_first_passage(problem, [1.0, 2.0], 100, seed=3, progress=ended.append)
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(ended) == 200
    assert simulate_first_passage(problem, [1.0, 2.0], 100, seed=3) == first
    assert simulate_first_passage(problem, [1.0, 2.0], 100, seed=4) != first


def test_censored_paths_are_counted_and_the_exponential_mean_is_used() -> None:
    problem, s2 = PROBLEMS["shoulder"], 0.5
    expected = math.exp(log_mean_exit_time(problem, s2))
    (result,) = simulate_first_passage(problem, [s2], 4000, max_times=[expected])
    assert result.num_censored / 4000 == pytest.approx(math.exp(-1.0), abs=0.04)
    assert result.mean == pytest.approx(expected, rel=0.08)
    (none,) = simulate_first_passage(problem, [0.05], 10, max_times=[0.5])
    assert none.num_censored == 10
    assert none.mean == math.inf


def test_time_step_resolves_drift_and_noise() -> None:
    assert time_step(PROBLEMS["double_well"], 0.1) * PROBLEMS["double_well"].stiffness == pytest.approx(0.4)
    assert time_step(linear(1.0), 4.0) == pytest.approx(0.01 / 4.0)


def test_errors_name_the_value() -> None:
    problem = PROBLEMS["shoulder"]
    with pytest.raises(ValueError, match="s2=0"):
        log_mean_exit_time(problem, 0.0)
    with pytest.raises(ValueError, match="num_paths=1"):
        simulate_first_passage(problem, [1.0], 1)
    with pytest.raises(ValueError, match="time_steps"):
        simulate_first_passage(problem, [1.0], 10, time_steps=[0.0])
    with pytest.raises(ValueError, match="max_times"):
        simulate_first_passage(problem, [1.0], 10, max_times=[1.0, 2.0])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROBLEMS)
def test_five_levels_within_five_percent(name: str) -> None:
    problem = PROBLEMS[name]
    s2 = [2.0 * problem.barrier / exponent for exponent in (2.0, 3.0, 4.0, 5.0, 6.0)]
    for result in simulate_first_passage(problem, s2, num_paths=10_000):
        expected = math.exp(log_mean_exit_time(problem, result.s2))
        assert expected <= 1e3
        assert result.num_censored == 0
        assert result.mean == pytest.approx(expected, rel=0.05)
