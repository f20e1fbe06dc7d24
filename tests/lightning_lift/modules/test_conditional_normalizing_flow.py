import pytest
import torch

from lightning_lift.modules import ConditionalNormalizingFlow
from lightning_lift.testing import ModuleContract
from tests.lightning_lift.modules.test_conditional_flow import linear_gaussian


class TestContract(ModuleContract):
    def make(self) -> ConditionalNormalizingFlow:
        return ConditionalNormalizingFlow(2, (2,), num_layers=2, hidden_features=8)

    def make_data(self):
        return linear_gaussian()

    def test_freeze_gives_a_plain_module_of_the_same_density_in_original_units(self) -> None:
        module, data = self._fitted_once()
        rows = data.simulations(20, torch.Generator().manual_seed(3))
        frozen = module.freeze()
        assert not list(frozen.parameters())
        torch.testing.assert_close(frozen(rows.x, rows.context), module.log_prob(rows.x, rows.context))
        draws = module.sample(4, rows.context, seed=1)
        assert draws.shape == (4, 20, 2)
        torch.testing.assert_close(frozen.sample(4, rows.context, seed=1), draws)


@pytest.mark.parametrize("flow", ["maf", "realnvp", "rq_nsf_coupling", "rq_nsf_autoregressive"])
def test_every_kind_is_a_density_at_each_context(flow):
    torch.manual_seed(0)
    model = ConditionalNormalizingFlow(2, (3, 1), flow=flow, num_layers=2, hidden_features=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    contexts = torch.randn(2, 3, 1)
    axis = torch.linspace(-12.0, 12.0, 301)
    grid = torch.cartesian_prod(axis, axis)
    found = [model.log_prob_scaled(grid, context[None]).detach() for context in contexts]
    for log_prob in found:
        assert log_prob.exp().sum() * (24.0 / 300) ** 2 == pytest.approx(1.0, abs=0.03)
    assert not torch.allclose(*found, atol=1e-2)
    each = model.log_prob_scaled(grid[:2], contexts)
    torch.testing.assert_close(each[1], found[1][1], rtol=1e-4, atol=1e-4)
