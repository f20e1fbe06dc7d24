import math

import pytest
import torch

from lightning_lift.diagnostics import shoulder as S
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import ADMM, DirectSoftplus, ProjectedGradient
from lightning_lift.parameterizations.readouts import Exp, FlooredReLU, Readout, Softplus, Square


@pytest.mark.parametrize(
    ("readout", "slope", "expected"),
    [
        (Softplus(), 0.05, -2.9444389792),
        (Softplus(beta=4.0), 0.05, -2.9444389792 / 4.0),
        (Softplus(), 0.5, 0.0),
        (Exp(), 0.05, math.log(0.05)),
        (Square(), 0.05, 0.025),
        (FlooredReLU(0.1), 0.05, 0.1),
    ],
)
def test_threshold_by_slope(readout: Readout, slope: float, expected: float) -> None:
    threshold = S.shoulder_threshold(readout, slope)
    assert threshold == pytest.approx(expected, abs=1e-9)
    latents = torch.tensor([threshold - 1e-6, threshold + 1e-6], dtype=torch.float64)
    assert S.shoulder_mask(readout, latents, slope).tolist() == [True, False]


def test_softplus_weight_at_the_threshold_is_the_documented_one() -> None:
    latent = torch.tensor(S.shoulder_threshold(Softplus()), dtype=torch.float64)
    assert Softplus().value(latent).item() == pytest.approx(0.0512933, abs=1e-7)


def test_a_steep_negative_slope_is_no_shoulder_and_nan_is_none() -> None:
    assert S.shoulder_mask(Square(), torch.tensor([-3.0, 0.0, math.nan])).tolist() == [False, True, False]


@pytest.mark.parametrize("slope", [0.0, -0.1, math.nan, math.inf])
def test_bad_slopes_are_refused(slope: float) -> None:
    with pytest.raises(ValueError, match="slope="):
        S.shoulder_mask(Softplus(), torch.zeros(3), slope)


def test_a_slope_that_is_never_crossed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slope=1.5 is not crossed by Softplus"):
        S.shoulder_threshold(Softplus(), 1.5)


def test_occupancy_overall_and_by_tensor() -> None:
    shapes = {"a": torch.Size([2, 2]), "b": torch.Size([6])}
    mask = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 1]).bool()
    assert S.occupancy(mask) == 0.4
    assert S.occupancy_by_tensor(mask, shapes) == {"a": 0.75, "b": pytest.approx(1 / 6)}
    with pytest.raises(ValueError, match="10 weights"):
        S.occupancy_by_tensor(mask[:9], shapes)
    with pytest.raises(ValueError, match="empty"):
        S.occupancy(mask[:0])


def test_transitions_count_each_direction_against_those_that_could_move() -> None:
    before = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 0]).bool()
    after = torch.tensor([1, 1, 1, 0, 1, 1, 0, 0, 0, 0]).bool()
    moved = S.transitions(before, after)
    assert (moved.entries, moved.exits) == (2, 1)
    assert moved.entry_rate == pytest.approx(2 / 6)
    assert moved.exit_rate == pytest.approx(1 / 4)
    full = S.transitions(torch.ones(3).bool(), torch.ones(3).bool())
    assert math.isnan(full.entry_rate)
    assert full.exit_rate == 0.0
    with pytest.raises(ValueError, match="not of one model"):
        S.transitions(before, after[:5])


def test_zeros_and_floor_are_exact() -> None:
    weights = torch.tensor([0.0, 1e-30, 0.5, 0.0])
    assert S.floor_mask(weights).tolist() == [True, False, False, True]
    # 1e-8 is no float32 number: what the projection stored is its rounding, and that must count.
    projected = weights.clamp(min=1e-8)
    assert S.floor_mask(projected, 1e-8).tolist() == [True, True, False, True]


def test_what_is_inside_follows_the_parameterization() -> None:
    projected = ProjectedGradient(floor=0.25).bind(ICNN(2, (4, 4)))
    projected.initialize_({name: torch.linspace(0.0, 1.0, s.numel()).view(s) for name, s in projected.shapes.items()})
    expected = projected.latent() == 0.25
    assert 0 < int(expected.sum()) < expected.numel()
    assert torch.equal(S.inside_mask(projected, projected.latent()), expected)
    direct = DirectSoftplus().bind(ICNN(2, (4, 4)))
    latent = torch.linspace(-6.0, 1.0, direct.num_weights)
    assert torch.equal(S.inside_mask(direct, latent, 0.05), latent <= -math.log(19.0))


def test_admm_is_at_the_floor_where_evaluation_is() -> None:
    """Theta is free: just above 0 where the copy is 0, or below 0 where the copy has not followed yet."""
    admm = ADMM().bind(ICNN(2, (4, 4)))
    batch = torch.zeros(3, 2)
    admm.flat_weights.data.fill_(1e-4)
    admm.flat_weights.data[:5] = -1.0
    admm.dual.data.fill_(-0.5)
    admm.dual.data[:5] = 2.0
    admm.after_step_()
    mask = S.inside_mask(admm, admm.train().latent(batch))
    assert mask.tolist() == [False] * 5 + [True] * (admm.num_weights - 5)
