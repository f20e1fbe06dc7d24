import functools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from lightning_lift.flows.logdet import StochasticLogDet
from lightning_lift.flows.transform import (
    FlowBlock,
    FlowMap,
    FlowStage,
    PlainLogDet,
    all_points,
    standard_normal_log_prob,
)
from lightning_lift.networks import ICNN, ActNorm, ConvexNetwork
from lightning_lift.networks.actnorm import Normalization
from lightning_lift.potential import Potential
from tests.problems import Quadratic, potential_of

SMALL = functools.partial(ICNN, widths=[12, 12], free_weight_std=1.0, bias_std=1.0, strong_convexity=0.2)


class Stretched(ConvexNetwork):
    """E(x) = s (d_1 x_1^2 + d_2 x_2^2) / 2."""

    def __init__(self, curvatures: list[float]) -> None:
        super().__init__()
        self.dim = len(curvatures)
        self.register_buffer("curvatures", torch.tensor(curvatures))
        self.stiffness = nn.Parameter(torch.ones(()))

    def nonnegative_names(self) -> tuple[str, ...]:
        return ("stiffness",)

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * self.stiffness * (self.curvatures * x.square()).sum(1)


def flow(dim: int, blocks: int, actnorm: bool, dtype: torch.dtype = torch.float64) -> FlowMap:
    torch.manual_seed(0)
    stages = []
    x = 2.0 * torch.randn(200, dim) + 1.0
    for _ in range(blocks):
        block = FlowBlock(SMALL(dim, actnorm=actnorm), actnorm)
        potential = potential_of(block.network)
        x = block.initialize_(x, potential)
        norm = block.actnorm
        stages.append(FlowStage(potential, norm.normalization if norm else None))
    return FlowMap(stages).to(dtype)


@pytest.mark.parametrize("actnorm", [True, False])
@pytest.mark.parametrize(("dim", "blocks"), [(1, 2), (2, 1), (2, 3), (5, 2)])
def test_logdet_is_that_of_the_maps_jacobian(dim: int, blocks: int, actnorm: bool) -> None:
    transform = flow(dim, blocks, actnorm)
    x = torch.randn(7, dim, dtype=torch.float64)
    y, logdet = transform.forward(x)
    torch.testing.assert_close(y, transform.map(x))
    jacobian = vmap(jacrev(lambda row: transform.map(row.unsqueeze(0)).squeeze(0)))(x)
    torch.testing.assert_close(logdet, torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-9, atol=1e-9)
    step = 1e-6 * torch.eye(dim, dtype=torch.float64)
    columns = [(transform.map(x + row) - transform.map(x - row)) / 2e-6 for row in step]
    torch.testing.assert_close(logdet, torch.linalg.slogdet(torch.stack(columns, 2)).logabsdet, rtol=1e-6, atol=1e-6)
    plain = transform.estimate(x, PlainLogDet())
    torch.testing.assert_close(plain.logdet, logdet, rtol=1e-10, atol=1e-10)


def test_gradients_reach_the_weights_and_the_points_through_all_blocks() -> None:
    transform = flow(2, 3, True)
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    def score(points: Tensor) -> Tensor:
        y, logdet = transform.forward(points)
        return (standard_normal_log_prob(y) + logdet).sum()

    (gradient,) = torch.autograd.grad(score(x), x)
    for i in range(5):
        step = torch.zeros_like(x)
        step[i, 0] = 1e-6
        numeric = (score(x.detach() + step) - score(x.detach() - step)).detach() / 2e-6
        assert float(gradient[i, 0]) == pytest.approx(numeric.item(), rel=1e-5, abs=1e-7)
    first = transform.stages[0].potential.weights["output_weight"]
    (through,) = torch.autograd.grad(score(x), first)
    assert (through != 0).all()


def test_another_precision_is_differentiable_in_the_stored_tensors() -> None:
    network = SMALL(2)
    norm = ActNorm(2)
    stage = FlowStage(potential_of(network), norm.normalization)
    x = torch.randn(6, 2)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        y, logdet = FlowMap([stage]).to(dtype).forward(x.to(dtype))
        assert y.dtype == logdet.dtype == dtype
        loss = logdet.mean() - y.square().mean()
        gradients.append(torch.autograd.grad(loss, [*network.parameters(), norm.log_scale], allow_unused=True))
    for low, high in zip(*gradients, strict=True):
        if low is not None:
            assert high.dtype == torch.float32
            torch.testing.assert_close(low, high, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("blocks", [1, 3])
def test_inverse_in_both_precisions(blocks: int) -> None:
    double = flow(2, blocks, True)
    x = 3.0 * torch.randn(300, 2, dtype=torch.float64)
    found = double.inverse(double.map(x))
    assert found.converged.all()
    assert float((found.x - x).abs().max()) <= 1e-9
    assert (found.iterations >= blocks).all()
    single = double.to(torch.float32)
    found = single.inverse(single.map(x.float()))
    assert found.converged.all()
    assert found.x.dtype == torch.float32
    assert float((found.x - x).abs().max()) <= 1e-3


def test_points_that_float32_cannot_reach_are_solved_in_float64() -> None:
    torch.manual_seed(0)
    # A curvature of 1e3 amplifies the rounding of points far from its centre: no float32 number meets the tolerance.
    away = Normalization(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.zeros(2))
    stages = [FlowStage(potential_of(Stretched([1e3, 1.0])), away), FlowStage(potential_of(SMALL(2)))]
    transform = FlowMap(stages, tolerance=1e-7)
    x = torch.randn(500, 2) * torch.tensor([0.03, 1.0]) + away.center
    y = transform.map(x)
    missed = ~transform._solve(y, 1e-7).converged
    assert missed.any()
    found = transform.inverse(y)
    assert found.found is not None and found.found.all()
    exact = transform.to(torch.float64).inverse(y.double())
    torch.testing.assert_close(found.x[missed], exact.x[missed].float(), rtol=1e-5, atol=1e-8)
    # The map stretches by at least 0.2 everywhere: what is within the tolerance is within five times that of x.
    assert ((found.x - exact.x).norm(dim=1) <= 5e-7 * (1.0 + y.norm(dim=1)) + 1e-6).all()


def test_what_is_not_finite_is_flagged() -> None:
    transform = flow(2, 2, True, torch.float32)
    y = torch.tensor([[0.0, 0.0], [math.nan, 0.0], [0.0, math.inf]])
    found = transform.inverse(y)
    assert found.converged.tolist() == [True, False, False]
    with pytest.raises(RuntimeError, match="2 of 3 points were not found"):
        all_points(found)


def test_condition_is_the_worst_of_the_blocks() -> None:
    stages = [FlowStage(potential_of(Stretched([2.0, 6.0]))), FlowStage(potential_of(SMALL(2)))]
    x = torch.randn(9, 2)
    second = FlowMap(stages[1:]).hessian_condition(FlowMap(stages[:1]).map(x))
    torch.testing.assert_close(FlowMap(stages).hessian_condition(x), second.clamp(min=3.0))


def test_stochastic_logdet_through_blocks_is_within_its_error() -> None:
    transform = flow(6, 2, True)
    x = torch.randn(50, 6, dtype=torch.float64)
    result = transform.estimate(
        x, StochasticLogDet(evaluation_probes=256, tolerance=1e-8, evaluation="stochastic").eval()
    )
    assert result.converged.all()
    assert result.residual.max() <= 1e-8
    error = (result.logdet - transform.forward(x)[1]).abs()
    assert (error <= 5.0 * result.standard_error).all()
    assert (error > 0).any()


def test_initialisation_normalises_what_each_block_sees() -> None:
    torch.manual_seed(1)
    rows = torch.randn(400, 3) * torch.tensor([10.0, 1.0, 0.1]) + 5.0
    seen = []
    x = rows
    blocks = [FlowBlock(SMALL(3, actnorm=True), True) for _ in range(2)]
    for block in blocks:
        assert not block.is_initialized
        x, before = block.initialize_(x, potential_of(block.network)), x
        assert block.is_initialized
        seen.append(block.actnorm(before))
    for normalised in seen:
        torch.testing.assert_close(normalised.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
        torch.testing.assert_close(normalised.std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    state = {name: tensor.clone() for name, tensor in blocks[0].state_dict().items()}
    blocks[0].initialize_(7.0 * rows, potential_of(blocks[0].network))
    for name, tensor in blocks[0].state_dict().items():
        assert torch.equal(tensor, state[name]), "a block that was started stays as it is"


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (functools.partial(ICNN, activation="relu"), "not twice differentiable"),
        (functools.partial(ICNN, strong_convexity=0.0), "strong_convexity=0: .*does not integrate to 1"),
    ],
)
def test_networks_without_an_invertible_gradient_are_refused(network: type[ICNN], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlowBlock(network(2), True)


def test_learned_convexity_and_other_networks_are_taken() -> None:
    FlowBlock(ICNN(2, strong_convexity="learned"), True)
    block = FlowBlock(Quadratic(2), True)
    assert not block.is_initialized
    potential = Potential(block.network, {"stiffness": torch.ones(())})
    block.initialize_(torch.randn(10, 2), potential)
    assert block.is_initialized


def test_no_stages() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        FlowMap([])
