import inspect

import torch

from lightning_lift.modules import ConvexPotentialFlow
from lightning_lift.networks import ICNN, FlowICNN


def test_it_is_an_icnn_with_the_gaussian_softplus_and_the_default_of_flows() -> None:
    torch.manual_seed(0)
    one = FlowICNN(2, (8, 8), 0.1, True, "scaled", 0.5, 1.0, 0.3, True)
    two = ICNN(2, (8, 8), "gaussian_softplus", 0.1, True, "scaled", 0.5, 1.0, 0.3, True)
    two.load_state_dict(one.state_dict())
    x = torch.randn(5, 2)
    assert torch.equal(one(x), two(x))
    assert isinstance(ConvexPotentialFlow(2).network[0].network, FlowICNN)
    names = inspect.signature(ICNN).parameters
    for name, argument in inspect.signature(FlowICNN).parameters.items():
        assert argument.default == names[name].default, name
