"""The linear start of a conditional flow."""

import torch

from lightning_lift.datamodules import LinearGaussianDataModule
from lightning_lift.flows.regression import LinearRegression
from lightning_lift.flows.transform import FlowBlock, FlowMap, standard_normal_log_prob
from lightning_lift.networks import ICNN, PICNN
from lightning_lift.potential import Potential

MATRIX = [[1.0, 0.5, 0.0], [0.0, -2.0, 0.3]]


def started(rows: int = 20_000) -> tuple[LinearGaussianDataModule, LinearRegression]:
    data = LinearGaussianDataModule(3, MATRIX)
    x, context = data.simulations(rows, torch.Generator().manual_seed(0))[:2]
    regression = LinearRegression(3, 2)
    regression.initialize_(x, context)
    return data, regression


def test_a_linear_gaussian_posterior_is_found_at_once():
    data, regression = started()
    x, context = data.simulations(1000, torch.Generator().manual_seed(1))[:2]
    residual = regression.residual.to(torch.float64)
    log_q = standard_normal_log_prob(residual.apply(x, context)) + residual.log_det
    kl = data.log_posterior(x, context) - log_q  # of the estimate: about half the number of its parameters over rows
    assert abs(float(kl.mean())) < 1e-3
    torch.testing.assert_close(residual.invert(residual.apply(x, context[:1]), context[:1]), x)


def test_it_starts_once_and_without_slopes_where_rows_are_few():
    _, regression = started()
    before = regression.slope.clone()
    regression.initialize_(torch.randn(100, 3), torch.randn(100, 2))
    assert torch.equal(before, regression.slope) and regression.initialized
    few = LinearRegression(3, 20)
    few.initialize_(torch.cat([torch.randn(100, 2), torch.ones(100, 1)], 1), torch.randn(100, 20))
    assert not few.slope.any() and torch.isfinite(few.whiten).all()  # a constant column, too


def test_a_block_undoes_it_and_counts_its_determinant():
    torch.manual_seed(0)
    network = PICNN(3, (2,), (8,), activation="gaussian_softplus").double()
    weights = {name: network.get_parameter(name).detach() for name in network.nonnegative_names()}
    block = FlowBlock(network, actnorm=True, regression=True).double()
    data = LinearGaussianDataModule(3, MATRIX)
    x, context = data.simulations(500, torch.Generator().manual_seed(0))[:2]
    potential = Potential(network, weights, context)
    assert not block.is_initialized
    block.initialize_(x, potential)
    stage = block.stage(potential)
    assert block.is_initialized
    torch.testing.assert_close(torch.cov(stage.normalize(x).T, correction=0), torch.eye(3).double(), rtol=0, atol=1e-5)
    flow = FlowMap([stage])
    jacobian = torch.func.jacrev(lambda row: flow.rows(slice(0, 1)).map(row[None])[0])(x[0])
    torch.testing.assert_close(flow.forward(x)[1][0], torch.linalg.slogdet(jacobian)[1])
    torch.testing.assert_close(flow.inverse(flow.map(x)).x, x, rtol=1e-7, atol=1e-7)
    elsewhere = flow.at(context[:1])  # all rows at the context of the first
    torch.testing.assert_close(elsewhere.map(x[:1]), flow.map(x)[:1])
    assert FlowBlock(ICNN(3, (8,)), actnorm=True, regression=True).regression is None
