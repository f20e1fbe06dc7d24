import pytest
import torch
from torch import Tensor, nn

from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from tests.problems import Quadratic


class TwoBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = ICNN(2, (4, 4))
        self.rest = nn.ModuleList([ICNN(2, (3,))])
        self.scale = nn.Parameter(torch.ones(2))


@pytest.mark.parametrize("make", [ProjectedGradient, DirectSoftplus, Lift])
def test_names_are_collected_with_prefixes_from_every_network(make: type) -> None:
    module = TwoBlocks()
    parameterization = make().bind(module)
    assert parameterization.names == ("first.layers.1.hidden_weight", "first.output_weight", "rest.0.output_weight")
    assert parameterization.num_weights == 16 + 4 + 3
    assert "scale" in dict(module.named_parameters())
    weights = parameterization.weights(torch.randn(6, 2))
    assert weights["rest.0.output_weight"].shape == (3,)


def test_split_inverts_flattening() -> None:
    projected = ProjectedGradient().bind(TwoBlocks())
    flat = torch.arange(23.0)
    assert torch.equal(torch.cat([piece.reshape(-1) for piece in projected.split(flat).values()]), flat)


def test_a_scalar_weight_can_be_taken_over() -> None:
    direct = DirectSoftplus().bind(Quadratic(2))
    assert direct.weights()["stiffness"].shape == ()


def test_binding_twice_is_refused() -> None:
    projected = ProjectedGradient().bind(ICNN(1, (4,)))
    with pytest.raises(RuntimeError, match="bound already"):
        projected.bind(ICNN(1, (4,)))


def test_binding_one_network_to_two_is_refused() -> None:
    network = ICNN(1, (4,))
    ProjectedGradient().bind(network)
    with pytest.raises(ValueError, match="output_weight"):
        DirectSoftplus().bind(network)


def test_a_module_without_convex_networks_is_refused() -> None:
    with pytest.raises(ValueError, match="no ConvexNetwork"):
        ProjectedGradient().bind(nn.Linear(2, 2))


class Misspelt(Quadratic):
    def nonnegative_names(self) -> tuple[str, ...]:
        return ("stifness",)


def test_a_misspelt_name_is_refused_with_the_parameters_there_are() -> None:
    with pytest.raises(ValueError, match=r"'stifness'.*\['stiffness'\]"):
        ProjectedGradient().bind(Misspelt(1))


@pytest.mark.parametrize(("value", "message"), [(-1.0, "negative weight"), (float("nan"), "not finite")])
def test_a_bad_start_is_refused(value: float, message: str) -> None:
    network: ConvexNetwork = Quadratic(1)
    nn.init.constant_(next(network.parameters()), value)
    with pytest.raises(ValueError, match=message):
        ProjectedGradient().bind(network)


def _weights(**change: Tensor) -> dict[str, Tensor]:
    return {"layers.1.hidden_weight": torch.ones(4, 4), "output_weight": torch.ones(4)} | change


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"output_weight": torch.ones(4)}, "missing .*hidden_weight"),
        (_weights(output=torch.ones(4)), "unknown .*output"),
        (_weights(output_weight=torch.ones(5)), r"shape \(5,\), needs \(4,\)"),
        (_weights(output_weight=-torch.ones(4)), "negative"),
        (_weights(output_weight=torch.full((4,), float("inf"))), "not finite"),
    ],
)
def test_bad_weights_for_a_start_are_named(weights: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DirectSoftplus().bind(ICNN(1, (4, 4))).initialize_(weights)
