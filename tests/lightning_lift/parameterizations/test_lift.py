import copy

import pytest
import torch

from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Lift, Parameterization
from lightning_lift.parameterizations.body import body_fingerprint, standardize_code
from lightning_lift.testing import ParameterizationContract


class TestLift(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift()


class TestLiftWithHiddenEmission(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(body_widths=(16, 8), emission_width=12)


class TestLiftOfEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(emit="all")


class TestLowRankLift(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(emission="low_rank", slack_gain=30.0)


class TestRowColumnLift(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(emission="row_column", slack_gain=7.0)


class TestSharedBasisLift(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(emission="shared_basis", emission_rank=3, slack_gain=0.1)


class TestLowRankLiftOfEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(body_widths=(16, 8), emission_width=12, emission="low_rank", slack_gain=10.0, emit="all")


class TestRowColumnLiftOfEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(emission="row_column", slack_gain=10.0, emit="all")


class TestSharedBasisLiftOfEverything(ParameterizationContract):
    def make(self) -> Parameterization:
        return Lift(emission="shared_basis", emit="all")


class TestLowRankLiftFromTheReferenceStart(ParameterizationContract):
    matched_start = False

    def make(self) -> Parameterization:
        return Lift(emission="low_rank", slack_gain=10.0, slack_start=-2.0, slack_std=0.5)


class TestLiftFromTheReferenceStart(ParameterizationContract):
    matched_start = False

    def make(self) -> Parameterization:
        return Lift(slack_start=-2.0, slack_std=0.5, standardize_summary=False)


def test_a_body_without_slack() -> None:
    torch.manual_seed(0)
    lift = Lift(use_slack=False).bind(ICNN(2, (8, 8)))
    assert lift.slack is None
    assert "slack" not in dict(lift.named_parameters())
    batch = torch.randn(10, 2)
    torch.testing.assert_close(lift.latent(batch), lift.emission(lift.code(batch)))
    with pytest.raises(ValueError, match="no right inverse"):
        lift.initialize_({name: torch.ones(shape) for name, shape in lift.shapes.items()})
    lift.calibrate([batch])
    assert torch.isfinite(lift.eval().latent()).all()


def bound(**arguments: object) -> Lift:
    torch.manual_seed(0)
    return Lift(**{"slack_start": -2.0, **arguments}).bind(ICNN(2, (8, 8)))


def test_latent_is_slack_plus_emission_of_the_mean_code() -> None:
    lift = bound()
    batch = torch.randn(10, 2)
    code = standardize_code(lift.body(batch).mean(0))
    torch.testing.assert_close(lift.latent(batch), lift.slack + lift.emission.weight @ code)


def test_slack_gain_multiplies_the_stored_slack() -> None:
    lift, batch, vector = bound(slack_gain=10.0, slack_std=0.5), torch.randn(10, 2), torch.randn(72)
    torch.testing.assert_close(lift.latent(batch), 10.0 * lift.slack + lift.emission(lift.code(batch)))
    start = 10.0 * lift.slack.detach()
    assert float(start.mean()) == pytest.approx(-2.0, abs=0.3)
    assert 0.3 < float(start.std()) < 0.7
    (slope,) = torch.autograd.grad(lift.latent(batch) @ vector, lift.slack)
    torch.testing.assert_close(slope, 10.0 * vector)


def test_the_slack_gain_follows_the_emission_where_it_is_not_given() -> None:
    assert Lift().slack_gain == 1.0
    assert Lift(emission="low_rank").slack_gain == 16.0
    assert Lift(emission="low_rank", slack_gain=1.0).slack_gain == 1.0


@pytest.mark.parametrize("emission", ["low_rank", "row_column", "shared_basis"])
def test_under_adam_the_slack_moves_as_far_as_a_dense_lifts_latent(emission: str) -> None:
    """First step at rate lr: lr (1 + |z|_1) with a dense emission, lr * slack_gain with the gain of its code."""

    def first_step(kind: str, gain: float) -> tuple[torch.Tensor, float]:
        torch.manual_seed(0)
        lift = Lift(emission=kind, slack_gain=gain).bind(ICNN(2, (8, 8)))
        batch = torch.randn(64, 2)
        before, code = lift.latent(batch).detach(), lift.code(batch).detach()
        moved = [lift.slack, *lift.emission.parameters()] if kind == "dense" else [lift.slack]
        optimizer = torch.optim.Adam(moved, lr=1e-4)
        (lift.latent(batch) * torch.linspace(-1.0, 1.0, 72)).sum().backward()
        optimizer.step()
        return lift.latent(batch).detach() - before, float(code.abs().sum())

    dense, size = first_step("dense", 1.0)
    cheap, _ = first_step(emission, 1.0 + size)
    torch.testing.assert_close(cheap, dense, rtol=1e-2, atol=1e-5)
    # Stated in the class: |z|_1 is about 0.8 F for a standardised code.
    assert 0.5 * 96 < size < 96


def test_a_lift_without_emission_is_its_slack() -> None:
    class SlackOnly(Lift):
        def _make_emission(self, *_: object) -> None:
            return None

    network = ICNN(2, (8, 8))
    start = torch.cat([network.get_parameter(name).detach().flatten() for name in network.nonnegative_names()])
    lift = SlackOnly(slack_gain=5.0).bind(network)
    latent = lift.latent(torch.randn(10, 2))
    torch.testing.assert_close(lift.readout.value(latent), start, rtol=1e-6, atol=0.0)
    assert torch.equal(latent, 5.0 * lift.slack)


def test_a_dense_lifts_state_keeps_its_keys() -> None:
    """Checkpoints written before the emission had a kind load."""
    keys = set(Lift(emit="all").bind(ICNN(2, (8, 8))).state_dict())
    assert {"slack", "emission.weight", "free_slack", "free_emission.weight", "_extra_state"} <= keys
    assert {key for key in keys if not key.startswith("body.")} == {
        "slack",
        "emission.weight",
        "free_slack",
        "free_emission.weight",
        "_extra_state",
    }


def test_code_does_not_depend_on_the_order_of_the_batch() -> None:
    lift, batch = bound(), torch.randn(64, 2)
    torch.testing.assert_close(lift.latent(batch.flip(0)), lift.latent(batch), rtol=1e-5, atol=1e-6)


def test_slack_has_unit_derivative() -> None:
    lift, batch = bound(), torch.randn(10, 2)
    vector = torch.randn(lift.num_weights)
    (slope,) = torch.autograd.grad(lift.latent(batch) @ vector, lift.slack)
    assert torch.equal(slope, vector)


def test_constant_slack_start() -> None:
    assert torch.equal(bound().slack, torch.full((8 * 8 + 8,), -2.0))
    spread = bound(slack_std=0.5).slack.detach()
    assert 0.3 < float(spread.std()) < 0.7


def test_emitting_everything_leaves_no_parameter_on_the_network() -> None:
    network = ICNN(2, (8, 8))
    expected = {name: p.detach().clone() for name, p in network.named_parameters()}
    lift = Lift(emit="all").bind(network)
    assert not list(network.parameters())
    weights = lift.weights(torch.randn(5, 2))
    assert set(weights) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-6, atol=0.0)
    assert lift.num_weights == sum(expected[name].numel() for name in lift.names)


def test_reference_summary_is_the_mean_over_all_rows_however_they_are_cut() -> None:
    lift, rows = bound(), torch.randn(100, 2)
    lift.calibrate([rows])
    whole = lift.reference_summary
    lift.calibrate([rows[:7], rows[7:90], rows[90:]])
    torch.testing.assert_close(lift.reference_summary, whole, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(whole, lift.body(rows).mean(0), rtol=1e-5, atol=1e-6)


def test_training_mode_needs_a_batch() -> None:
    with pytest.raises(ValueError, match=r"eval\(\)"):
        bound().latent()


def test_evaluation_without_calibration_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="calibrate"):
        bound().eval().latent()


def test_a_summary_of_other_body_weights_is_an_error() -> None:
    lift = bound()
    lift.calibrate([torch.randn(20, 2)])
    assert not lift.is_stale
    with torch.no_grad():
        next(lift.body.parameters()).add_(1e-3)
    assert lift.is_stale
    with pytest.raises(RuntimeError, match="other body weights"):
        lift.eval().latent()


def test_slack_and_emission_may_move_without_recalibration() -> None:
    lift = bound()
    lift.calibrate([torch.randn(20, 2)])
    with torch.no_grad():
        lift.slack.add_(1.0)
        lift.emission.weight.mul_(2.0)
    assert not lift.is_stale


def test_calibration_under_inference_mode_leaves_trainable_numbers() -> None:
    lift = bound()
    with torch.inference_mode():
        lift.calibrate([torch.randn(20, 2)])
    lift.eval().latent().sum().backward()
    assert lift.slack.grad is not None


@pytest.mark.parametrize(
    ("rows", "message"), [([], "no rows"), ([torch.tensor([[1.0, float("nan")]])], "NaN")], ids=["none", "nan"]
)
def test_bad_calibration_rows(rows: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bound().calibrate(rows)


def test_calibrating_a_state_dictionary_equals_calibrating_its_module() -> None:
    live, other = bound(), bound()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    state = {f"p.{name}": tensor for name, tensor in copy.deepcopy(other.state_dict()).items()}
    rows = [torch.randn(30, 2)]
    assert live.is_state_stale(state, "p.")
    live.calibrate_state(state, "p.", rows)
    assert not live.is_state_stale(state, "p.")
    other.calibrate(rows)
    torch.testing.assert_close(state["p._extra_state"]["reference_summary"], other.reference_summary.detach())
    assert live.is_stale, "the live module is as it was"


def test_fingerprint_survives_float64_and_back() -> None:
    body = bound().body
    before = body_fingerprint(body)
    assert body_fingerprint(body.double()) == before
    assert body_fingerprint(body.float()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"emit": "some"}, "emit='some'"),
        ({"slack_start": "zero"}, "slack_start='zero'"),
        ({"slack_start": float("nan")}, "slack_start=nan"),
        ({"slack_start": "matched", "slack_std": 1.0}, "slack_std=1.0"),
        ({"use_slack": False}, "slack_start=-2.0 with use_slack=False"),
        ({"emission_width": 0}, "emission_width=0"),
        ({"emission": "sparse"}, "emission='sparse'"),
        ({"emission_rank": 4}, "emission_rank=4 with emission='dense'"),
        ({"slack_gain": 0.0}, "slack_gain=0.0"),
        ({"slack_gain": float("inf")}, "slack_gain=inf"),
        ({"slack_gain": 2.0, "use_slack": False, "slack_start": "matched"}, "slack_gain=2.0 with use_slack=False"),
        ({"body_widths": ()}, "body_widths"),
        ({"body_widths": (4, 0)}, "body_widths"),
        ({"body_widths": (4, 1)}, "a code of one number is 0"),
        ({"readout": "tanh"}, "'tanh'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bound(**arguments)


@pytest.mark.parametrize("settings", [{"body_widths": (4, 1), "standardize_summary": False}, {"body_widths": (4, 2)}])
@pytest.mark.parametrize("batch", [torch.randn(1, 2), torch.zeros(5, 2), torch.full((5, 2), -1e4)])
def test_the_smallest_codes_and_batches_have_finite_weights_and_gradients(settings: dict, batch: torch.Tensor) -> None:
    lift = bound(**settings)
    with torch.no_grad():
        for tensor in (*lift.body.parameters(), *lift.emission.parameters()):
            tensor.copy_(-torch.rand_like(tensor))  # a constant code, or none: no unit is above 0 for zero rows
    flat = torch.cat([weight.flatten() for weight in lift.weights(batch).values()])
    gradients = torch.autograd.grad(flat.sum(), list(lift.parameters()), allow_unused=True)
    assert all(bool(tensor.isfinite().all()) for tensor in (flat, *(g for g in gradients if g is not None)))


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="without rows"):
        bound().weights(torch.zeros(0, 2))
