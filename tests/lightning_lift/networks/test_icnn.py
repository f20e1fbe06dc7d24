import math

import pytest
import torch

from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import Lift, ProjectedGradient
from lightning_lift.potential import Potential
from lightning_lift.testing import NetworkContract
from tests.problems import potential_of


class TestSoftplus(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        return ICNN(dim, widths=(16, 12, 8), bias_std=0.3)


class TestGaussianSoftplus(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        return ICNN(dim, widths=(16, 12), activation="gaussian_softplus", strong_convexity=0.1, bias_std=0.3)


class TestRelu(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        return ICNN(dim, widths=(16, 12), activation="relu", bias_std=0.3)


class TestDividedByFanIn(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        return ICNN(dim, (16, 12), divide_by_fan_in=True, weight_init="constant", free_weight_std=1.0, bias_std=1.0)


class TestOneLayer(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        return ICNN(dim, widths=(16,), strong_convexity=0.0)


class TestLearnedScales(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        return ICNN(dim, widths=(16, 12), strong_convexity="learned", bias_std=0.3)


class TestActNormInside(NetworkContract):
    def make(self, dim: int) -> ConvexNetwork:
        network = ICNN(dim, (16, 12), strong_convexity="learned", actnorm=True, divide_by_fan_in=True, bias_std=0.3)
        network.initialize_actnorm_(torch.randn(32, dim), {})
        return network


class TestMonotone(NetworkContract):
    dims = (2, 5)

    def make(self, dim: int) -> ConvexNetwork:
        return ICNN(dim, (16, 12), actnorm=True, increasing=[dim - 1], decreasing=[0])

    @pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
    def test_slopes_keep_their_signs_and_bend_only_by_the_layers(self, dtype: torch.dtype, slack: float) -> None:
        torch.manual_seed(0)
        potential = potential_of(self.make(3).to(dtype))
        x = 10.0 * torch.randn(10_000, 3, dtype=dtype)
        _, gradient, hessian = potential.value_gradient_hessian(x)
        assert gradient[:, 2].min() >= -slack
        assert gradient[:, 0].max() <= slack
        far = torch.full((1, 3), 1e4, dtype=dtype)  # where the layers are straight, only the free input has k
        assert potential.hessian(far).diagonal(dim1=1, dim2=2)[0].tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-3)
        assert torch.isfinite(hessian).all()


@pytest.mark.parametrize("named", [{"increasing": [2]}, {"increasing": [0], "decreasing": [0]}, {"decreasing": [-1]}])
def test_a_position_of_no_input_is_refused(named: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match="name positions of the 2 inputs, from 0 to 1, each once"):
        ICNN(2, (4,), **named)


def test_learned_scales_and_actnorm_are_the_stated_formula() -> None:
    torch.manual_seed(0)
    network = ICNN(2, (5, 4), strong_convexity="learned", divide_by_fan_in=False, actnorm=True).double()
    with torch.no_grad():
        for tensor in (*network.parameters(), *(layer.actnorm.center for layer in network.layers)):
            tensor.add_(0.2 * torch.rand_like(tensor))
    p = {name: tensor.detach() for name, tensor in (*network.named_parameters(), *network.named_buffers())}
    x = torch.randn(7, 2, dtype=torch.float64)
    z = None
    for layer in ("layers.0", "layers.1"):
        pre = x @ p[f"{layer}.input_weight"].T
        pre = pre if z is None else pre + z @ p[f"{layer}.hidden_weight"].T
        pre = torch.exp(p[f"{layer}.actnorm.log_scale"]) * (pre - p[f"{layer}.actnorm.center"])
        z = torch.log1p(torch.exp(pre + p[f"{layer}.actnorm.shift"] + p[f"{layer}.bias"]))
    energy = z @ p["output_weight"] + x @ p["output_input_weight"]
    w1, w0 = (torch.log1p(torch.exp(p[name])) for name in ("raw_output_scale", "raw_strong_convexity"))
    torch.testing.assert_close(network(x), w1 * energy + w0 * 0.5 * x.square().sum(1))
    assert network.strong_convexity == pytest.approx(float(w0))


def test_learned_scales_start_at_one() -> None:
    networks = []
    for k in ("learned", 1.0):
        torch.manual_seed(0)
        networks.append(ICNN(2, (8, 8), strong_convexity=k))
    x = torch.randn(5, 2)
    torch.testing.assert_close(networks[0](x), networks[1](x))


def test_without_the_options_the_state_is_as_before() -> None:
    """Checkpoints written before ActNorm and learned scales existed must load."""
    names = ["output_weight", "output_input_weight", "layers.0.input_weight", "layers.0.bias"]
    names += ["layers.1.hidden_weight", "layers.1.input_weight", "layers.1.bias"]
    assert list(ICNN(2, (4, 4), strong_convexity=0.02).state_dict()) == names


def pre_activations(network: ICNN, x: torch.Tensor) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    for layer in network.layers:
        pre = x @ layer.input_weight.T
        if seen:
            z = network.activation.value(seen[-1])
            pre = pre + z @ (layer.hidden_weight / layer.hidden_weight.shape[1]).T
        seen.append((layer.actnorm(pre) if layer.actnorm else pre) + layer.bias)
    return seen


def test_actnorms_start_with_centred_units_of_variance_one() -> None:
    torch.manual_seed(0)
    network = ICNN(3, (8, 6, 4), actnorm=True, divide_by_fan_in=True, bias_std=1.0).double()
    x = 3.0 * torch.randn(200, 3, dtype=torch.float64) + 1.0
    network.initialize_actnorm_(x, {})
    for pre in pre_activations(network, x):
        torch.testing.assert_close(pre.mean(0), torch.zeros_like(pre[0]), rtol=0, atol=1e-10)
        torch.testing.assert_close(pre.var(0, correction=0), torch.ones_like(pre[0]))


def test_actnorms_start_under_the_weights_handed_in_and_only_once() -> None:
    torch.manual_seed(0)
    network, x = ICNN(2, (8, 8), divide_by_fan_in=False, bias_std=0.0, actnorm=True), torch.randn(64, 2)
    bound = ProjectedGradient().bind(network)
    doubled = {name: 2.0 * weight for name, weight in bound.weights().items()}
    network.initialize_actnorm_(x, doubled)
    first = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    pre = x @ network.layers[1].input_weight.T
    z = network.activation.value(network.layers[0].actnorm(x @ network.layers[0].input_weight.T))
    out = network.layers[1].actnorm(pre + z @ doubled["layers.1.hidden_weight"].T)
    torch.testing.assert_close(out.var(0, correction=0), torch.ones(8), rtol=1e-4, atol=1e-4)
    network.initialize_actnorm_(5.0 * x, bound.weights())
    assert all(torch.equal(tensor, first[name]) for name, tensor in network.state_dict().items())


def test_starting_without_actnorm_does_nothing() -> None:
    network = ICNN(2, (4,))
    before = network.output_weight.clone()
    network.initialize_actnorm_(torch.randn(4, 2), {})
    assert torch.equal(network.output_weight, before)


def test_everything_emitted_by_a_lift() -> None:
    """Emitted scales and ActNorms are read; k is then unknown, and data cannot start the ActNorms."""
    torch.manual_seed(0)
    network = ICNN(2, (8, 8), strong_convexity="learned", actnorm=True)
    lift = Lift(emit="all", slack_start=-1.0).bind(network)
    assert not list(network.parameters())
    assert network.strong_convexity == 0.0
    x = torch.randn(5, 2)
    weights = lift.weights(x)
    value = Potential(network, weights).value(x)
    for name in ("raw_output_scale", "raw_strong_convexity", "layers.1.actnorm.log_scale", "layers.0.actnorm.shift"):
        moved = Potential(network, {**weights, name: weights[name] + 0.5}).value(x)
        assert (moved - value).abs().max() > 1e-3, f"{name} is not read"
    with pytest.raises(RuntimeError, match="emit: constrained"):
        network.initialize_actnorm_(x, weights)


def test_forward_is_the_stated_formula() -> None:
    torch.manual_seed(0)
    network = ICNN(2, widths=(5, 4), strong_convexity=0.3, divide_by_fan_in=False).double()
    p = {name: tensor.detach() for name, tensor in network.named_parameters()}
    x = torch.randn(7, 2, dtype=torch.float64)
    z = torch.log1p(torch.exp(x @ p["layers.0.input_weight"].T + p["layers.0.bias"]))
    pre = z @ p["layers.1.hidden_weight"].T + x @ p["layers.1.input_weight"].T + p["layers.1.bias"]
    z = torch.log1p(torch.exp(pre))
    expected = z @ p["output_weight"] + x @ p["output_input_weight"] + 0.15 * x.square().sum(1)
    torch.testing.assert_close(network(x), expected)


def test_dividing_by_the_fan_in_keeps_the_effective_start() -> None:
    networks = []
    for divide in (False, True):
        torch.manual_seed(0)
        networks.append(ICNN(2, widths=(32, 16), divide_by_fan_in=divide))
    x = torch.randn(5, 2)
    torch.testing.assert_close(networks[1](x), networks[0](x))
    stored = dict(networks[1].named_parameters())["layers.1.hidden_weight"]
    effective = dict(networks[0].named_parameters())["layers.1.hidden_weight"]
    torch.testing.assert_close(stored, 32 * effective)


def test_folded_normal_start_has_mean_one_over_root_fan_in() -> None:
    torch.manual_seed(0)
    weight = dict(ICNN(1, (256, 256), weight_init="folded_normal", divide_by_fan_in=False).named_parameters())[
        "layers.1.hidden_weight"
    ]
    standard_error = float(weight.std()) / math.sqrt(weight.numel())
    assert abs(float(weight.mean()) - 1 / 16) < 4 * standard_error


def test_principled_start_has_the_published_moments() -> None:
    torch.manual_seed(0)
    n = 256
    parameters = dict(ICNN(1, (n, 1024), weight_init="principled", divide_by_fan_in=False).named_parameters())
    weight, bias = parameters["layers.1.hidden_weight"].detach(), parameters["layers.1.bias"].detach()
    denominator = 6 * (math.pi - 1) + (n - 1) * (3 * math.sqrt(3) + 2 * math.pi - 6)
    assert float(weight.mean()) == pytest.approx(math.sqrt(6 * math.pi / (n * denominator)), rel=0.02)
    assert float(weight.var()) == pytest.approx(1 / n, rel=0.1)  # heavy-tailed: 262,144 draws of a log-normal
    assert torch.allclose(bias, torch.tensor(-math.sqrt(3 * n / denominator)))
    assert (parameters["layers.0.bias"] == 0).all()


def test_principled_start_keeps_the_signal_in_deep_networks() -> None:
    """Over 10 layers, units stay centred with a spread of order one; the folded normal start explodes."""
    spreads = {}
    for how in ("principled", "folded_normal"):
        torch.manual_seed(0)
        network = ICNN(64, widths=(256,) * 10, activation="relu", weight_init=how, strong_convexity=0.0)
        with torch.no_grad():
            for layer in list(network.layers)[1:]:
                layer.input_weight.zero_()
            network.layers[0].input_weight.normal_(0.0, 1 / 8)
            spreads[how] = float(network(torch.randn(512, 64)).std())
    assert 1e-2 < spreads["principled"] < 1e2
    assert spreads["folded_normal"] > 1e2 * spreads["principled"]


def test_relu_is_refused_where_hessians_are_needed() -> None:
    with pytest.raises(NotImplementedError, match="gaussian_softplus"):
        potential_of(ICNN(2, (4,), activation="relu")).hessian(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 0}, "dim=0"),
        ({"widths": ()}, "at least one hidden layer"),
        ({"widths": (8, 0)}, r"widths=\[8, 0\]"),
        ({"strong_convexity": -1.0}, "strong_convexity=-1.0"),
        ({"strong_convexity": math.nan}, "strong_convexity=nan"),
        ({"strong_convexity": "free"}, "'free'.*'learned'"),
        ({"free_weight_std": -1.0}, "free_weight_std=-1.0"),
        ({"bias_std": -0.5}, "bias_std=-0.5"),
        ({"activation": "tanh"}, "'tanh'"),
        ({"weight_init": "zeros"}, "'zeros'"),
        ({"weight_init": "constant", "weight_init_value": -1.0}, "weight_init_value=-1.0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ICNN(**{"dim": 2, **arguments})


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 1)])
def test_points_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \(N, 2\)"):
        ICNN(2, (4,))(torch.zeros(shape))


@pytest.mark.parametrize(("dim", "depth", "width"), [(1, 3, 64), (2, 10, 64), (10, 1, 512), (10, 10, 512), (256, 3, 8)])
def test_the_scaled_start_is_of_order_one_at_any_size(dim: int, depth: int, width: int) -> None:
    """Moments over units and x ~ N(0, I): pre-activations as stated, value and gradient as for |x|^2 / 2."""
    values, gradients, spreads = [], [], []
    for seed in range(8):
        torch.manual_seed(seed)
        network, x = ICNN(dim, widths=(width,) * depth), torch.randn(2000, dim)
        bound = potential_of(network)
        value, gradient = bound.value_gradient(x)
        pre = pre_activations(network, x)[-1]
        free = x @ network.layers[-1].input_weight.T + network.layers[-1].bias
        common = pre - free  # T z, the same for every unit of a constant start
        assert depth == 1 or float((common - common[:, :1]).abs().max()) < 1e-4 * float(pre.abs().max())
        spreads.append(float(free.var()))
        values.append(float((value - 0.5 * x.square().sum(1)).mean()))
        gradients.append(float((gradient - x).square().sum(1).mean().sqrt()))
    assert sum(spreads) / 8 == pytest.approx(1.0 + 109.0 / dim, rel=0.35)
    assert 0.0 < sum(values) / 8 < 12.0, "E_0 is no larger at any depth or width"
    assert sum(gradients) / 8 < 12.0


def test_an_intercept_is_added_to_the_value_and_to_nothing_else() -> None:
    torch.manual_seed(0)
    with_one = ICNN(2, (8, 8), intercept=True)
    without = ICNN(2, (8, 8))
    without.load_state_dict({k: v for k, v in with_one.state_dict().items() if k != "output_bias"})
    with torch.no_grad():
        with_one.output_bias.fill_(-3.0)
    x = torch.randn(5, 2)
    one, two = potential_of(with_one), potential_of(without)
    torch.testing.assert_close(one.value(x), two.value(x) - 3.0)
    for derivative in ("gradient", "hessian", "logdet"):
        torch.testing.assert_close(getattr(one, derivative)(x), getattr(two, derivative)(x))


def test_learned_gain_is_the_stated_formula() -> None:
    torch.manual_seed(0)
    network, x = ICNN(2, (4,), strong_convexity="learned_gain"), torch.randn(5, 2)
    fixed = ICNN(2, (4,), strong_convexity=0.0)
    fixed.load_state_dict({k: v for k, v in network.state_dict().items() if not k.startswith("raw_")})
    plain = potential_of(fixed).value(x)
    assert network.strong_convexity == pytest.approx(1.0)
    with torch.no_grad():
        network.raw_strong_convexity.fill_(0.2)
        network.raw_output_scale.fill_(-0.1)
    expected = torch.log1p(torch.tensor(-1.0).exp()) * plain
    expected = expected + 0.5 * torch.log1p(torch.tensor(2.0).exp()) * x.square().sum(1)
    torch.testing.assert_close(potential_of(network).value(x), expected)
