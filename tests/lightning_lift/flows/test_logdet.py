import pytest
import torch
from torch import Tensor

from lightning_lift.flows import ExactLogDet, StochasticLogDet, choose_logdet, make_logdet
from lightning_lift.flows.logdet import log_quadratic_form
from lightning_lift.networks import ICNN
from lightning_lift.potential import Potential
from tests.problems import Quadratic, potential_of


def problem(dim: int = 12) -> tuple[ICNN, Potential, Tensor]:
    torch.manual_seed(0)
    network = ICNN(dim, (24, 24), strong_convexity=0.2, free_weight_std=0.5, bias_std=1.0).double()
    x = torch.randn(6, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return network, potential_of(network), x


def test_stochastic_value_is_within_its_standard_error() -> None:
    _, potential, x = problem()
    exact = ExactLogDet()(potential, x)
    estimator = StochasticLogDet(evaluation="stochastic", evaluation_probes=400, tolerance=1e-9).eval()
    with torch.no_grad():
        found = estimator(potential, x)
    assert found.converged.all() and float(found.residual.max()) <= 1e-9
    torch.testing.assert_close(found.gradient, exact.gradient)
    assert ((found.logdet - exact.logdet).abs() <= 4.0 * found.standard_error).all()
    assert (found.standard_error < 0.5).all()
    assert (exact.standard_error == 0).all() and (exact.residual == 0).all() and exact.converged.all()


def test_standard_error_is_that_of_repetitions() -> None:
    """Over 40 seeds, the spread of the estimate is what one run says of itself."""
    _, potential, x = problem()
    values, errors = [], []
    for seed in range(40):
        estimator = StochasticLogDet(evaluation="stochastic", evaluation_probes=16, tolerance=1e-6, seed=seed).eval()
        with torch.no_grad():
            found = estimator(potential, x[:1])
        values.append(float(found.logdet))
        errors.append(float(found.standard_error))
    spread, stated = torch.tensor(values).std(), torch.tensor(errors).square().mean().sqrt()
    # The relative standard error of a spread over 40 runs is 1/sqrt(80) = 11 %.
    assert 0.6 < float(spread / stated) < 1.5


def test_gradient_of_the_surrogate_is_unbiased() -> None:
    network, potential, x = problem()
    parameters = [p for p in network.parameters() if p is not network.output_input_weight]  # its gradient is zero
    exact = torch.autograd.grad(ExactLogDet()(potential, x).logdet.sum(), parameters)
    estimator = StochasticLogDet(num_probes=1, tolerance=1e-9)
    draws = [torch.autograd.grad(estimator(potential, x).logdet.sum(), parameters) for _ in range(300)]
    for index, reference in enumerate(exact):
        sample = torch.stack([draw[index] for draw in draws])
        error = sample.std(0) / len(draws) ** 0.5
        scores = ((sample.mean(0) - reference) / error.clamp(min=1e-12)).flatten()
        # Right errors give a mean square of one; the entries are correlated, hence the room. A bias of half a standard
        # deviation of one draw would give 1 + 300/4.
        assert float(scores.square().mean()) < 2.5
        torch.testing.assert_close(float(sample.mean(0).norm()), float(reference.norm()), rtol=0.15, atol=0.0)


def test_gradient_reaches_the_points() -> None:
    _, potential, x = problem()
    x.requires_grad_()
    (exact,) = torch.autograd.grad(ExactLogDet()(potential, x).logdet.sum(), x)
    (found,) = torch.autograd.grad(StochasticLogDet(num_probes=4000, tolerance=1e-9)(potential, x).logdet.sum(), x)
    assert float((found - exact).norm() / exact.norm()) < 0.1


def test_evaluation_does_not_depend_on_the_batch_nor_on_training() -> None:
    _, potential, x = problem()
    estimator = StochasticLogDet(evaluation="stochastic", evaluation_probes=4, tolerance=1e-10)
    estimator(potential, x)
    estimator.eval()
    with torch.no_grad():
        together, alone = estimator(potential, x).logdet, estimator(potential, x[3:4]).logdet
        fresh = StochasticLogDet(evaluation="stochastic", evaluation_probes=4, tolerance=1e-10).eval()(potential, x)
    torch.testing.assert_close(together[3:4], alone)
    torch.testing.assert_close(together, fresh.logdet)


def test_evaluation_is_exact_as_long_as_a_hessian_fits() -> None:
    _, potential, x = problem()
    estimator = StochasticLogDet().eval()
    assert estimator.evaluates_exactly(1024) and not estimator.evaluates_exactly(1025)
    assert torch.equal(estimator(potential, x).logdet, ExactLogDet()(potential, x).logdet)
    assert not StochasticLogDet(evaluation="stochastic").evaluates_exactly(2)


def test_resumed_training_draws_the_same_probes(tmp_path) -> None:
    _, potential, x = problem()
    estimator = StochasticLogDet(seed=3)
    estimator(potential, x)
    torch.save(estimator.state_dict(), tmp_path / "state.pt")
    expected = estimator(potential, x).logdet
    again = StochasticLogDet(seed=4)
    assert not torch.equal(again(potential, x).logdet, expected)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(again(potential, x).logdet, expected)


def test_one_probe_has_an_unknown_error_and_truncation_is_seen() -> None:
    _, potential, x = problem()
    found = StochasticLogDet(num_probes=1, max_iterations=2, tolerance=1e-6)(potential, x)
    assert found.standard_error.isnan().all()
    assert not found.converged.any() and (found.residual > 1e-6).all()


def test_exact_for_a_multiple_of_the_identity_by_a_generic_network() -> None:
    """Each probe gives D log(1/sd^2): no variance, one iteration."""
    potential = potential_of(Quadratic(30, sd=0.5).double())
    found = StochasticLogDet(num_probes=2)(potential, torch.ones(3, 30, dtype=torch.float64))
    torch.testing.assert_close(
        found.logdet.detach(), torch.full((3,), 30 * torch.log(torch.tensor(4.0)).item()).double()
    )
    assert float(found.standard_error.max()) < 1e-12


def test_points_that_are_not_finite_are_nan() -> None:
    _, potential, x = problem()
    x[0, 0] = torch.nan
    found = StochasticLogDet()(potential, x)
    assert found.logdet.isnan().tolist() == [True, *[False] * 5]
    assert found.converged.tolist() == [False, *[True] * 5]


def test_auto_and_names() -> None:
    assert choose_logdet(2) == choose_logdet(256) == "exact" and choose_logdet(257) == "stochastic"
    assert make_logdet("auto", 21).kind == "exact" and make_logdet("auto", 784).kind == "stochastic"
    assert make_logdet("stochastic", 2).kind == "stochastic" and make_logdet("exact", 784).kind == "exact"
    made = make_logdet("stochastic", 2, stochastic=lambda: StochasticLogDet(num_probes=7))
    assert isinstance(made, StochasticLogDet) and made.num_probes == 7
    with pytest.raises(ValueError, match="logdet='lanczos'"):
        make_logdet("lanczos", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_probes": 0}, "num_probes=0"),
        ({"evaluation_probes": 1}, "evaluation_probes=1"),
        ({"tolerance": 0.0}, r"tolerance=0\.0"),
        ({"max_iterations": 0}, "max_iterations=0"),
        ({"evaluation": "often"}, "evaluation='often'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StochasticLogDet(**arguments)
    with pytest.raises(ValueError, match="chunk_size=0"):
        ExactLogDet(0)


def test_the_quadratic_form_equals_the_logarithm_of_a_tridiagonal_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    main = 2.0 + torch.rand(3, 2, 6, generator=generator, dtype=torch.float64)
    side = torch.rand(3, 2, 5, generator=generator, dtype=torch.float64) - 0.5
    matrix = torch.diag_embed(main) + torch.diag_embed(side, 1) + torch.diag_embed(side, -1)
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    logarithm = (vectors * eigenvalues.log().unsqueeze(-2)) @ vectors.transpose(-2, -1)
    norm = torch.rand(3, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(log_quadratic_form(main, side, norm), norm * logarithm[..., 0, 0])


def test_the_quadratic_form_is_nan_where_the_matrix_has_no_logarithm() -> None:
    main = torch.tensor([[1.0, 2.0], [1.0, -2.0], [torch.nan, 1.0]])
    value = log_quadratic_form(main, torch.full((3, 1), 0.1), torch.ones(3))
    assert value.isnan().tolist() == [False, True, True]
    assert value.dtype == torch.float32
