"""What every target in the plane must hold; the contract of data modules is tested with each."""

import math

import pytest
import torch

from lightning_lift.datamodules import (
    CheckerboardDataModule,
    EightGaussiansDataModule,
    MoonsDataModule,
    PinwheelDataModule,
    RingsDataModule,
    SwissRollDataModule,
    TwoSpiralsDataModule,
)
from lightning_lift.datamodules.planar import Integral, PlanarDataModule, check_choice, check_width

# with the points along each side of the window: a spacing of at most 0.7 standard deviations of the noise
CASES = {
    "eight_gaussians": (EightGaussiansDataModule, {}, 161),
    "eight_gaussians, cp_flow": (EightGaussiansDataModule, {"convention": "cp_flow"}, 161),
    "two_spirals": (TwoSpiralsDataModule, {}, 401),
    "two_spirals, cp_flow": (TwoSpiralsDataModule, {"convention": "cp_flow"}, 161),
    "moons": (MoonsDataModule, {}, 161),
    "swiss_roll": (SwissRollDataModule, {}, 161),
    "rings": (RingsDataModule, {}, 201),
    "pinwheel": (PinwheelDataModule, {}, 401),
    "checkerboard": (CheckerboardDataModule, {}, 401),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    target, arguments, count = CASES[request.param]
    data = target(**arguments)
    (left, low), (right, high) = data.window.double().tolist()
    across = torch.linspace(left, right, count, dtype=torch.float64)
    along = torch.linspace(low, high, count, dtype=torch.float64)
    points = torch.cartesian_prod(across, along)
    area = (right - left) * (high - low) / (count - 1) ** 2
    return data, points, data.log_prob(points), area


def test_density_integrates_to_one(case) -> None:
    data, _, log_density, area = case
    assert log_density.dtype == torch.float64
    assert float(log_density.exp().sum()) * area == pytest.approx(1.0, abs=1e-6)
    assert data.has_log_prob and data.dim == 2 and data.log_scale == 0.0


def test_entropy_is_the_sum_over_the_window(case) -> None:
    data, _, log_density, area = case
    surprise = float(torch.special.entr(log_density.exp()).sum()) * area
    assert surprise == pytest.approx(data.entropy, abs=1e-5)
    assert 0.0 <= data.entropy_error < 2e-6
    assert data._integrated() is data._integrated()  # integrated once


def test_draws_have_the_density(case) -> None:
    """Means of waves over draws against their integrals: together they determine a distribution."""
    data, points, log_density, area = case
    rows = data.draw(40000, torch.Generator().manual_seed(11)).double()
    mass = log_density.exp() * area
    for frequency in ((0.7, 0.0), (0.0, 0.9), (1.3, -1.1), (2.3, 1.9), (-3.1, 2.7), (5.3, 4.1), (9.7, -11.3)):
        direction = torch.tensor(frequency, dtype=torch.float64)
        for wave in (torch.cos, torch.sin):
            drawn = wave(rows @ direction)
            expected = float((mass * wave(points @ direction)).sum())
            error = float(drawn.std()) / math.sqrt(len(drawn))
            # the sum over the window is itself off by 1e-3 for the sharp squares, and exact for the others
            room = 2e-3 if isinstance(data, CheckerboardDataModule) else 1e-6
            assert abs(float(drawn.mean()) - expected) < 4.5 * error + room, (frequency, wave)


def test_mean_surprise_of_draws_is_the_entropy(case) -> None:
    data, _, _, _ = case
    surprise = -data.log_prob(data.draw(20000, torch.Generator().manual_seed(5)).double())
    error = float(surprise.std()) / math.sqrt(len(surprise))
    assert abs(float(surprise.mean()) - data.entropy) < 4.0 * error + 1e-12


def test_single_precision_agrees(case) -> None:
    data, points, _, _ = case
    some = points[::997]
    single = data.log_prob(some.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, data.log_prob(some.float().double()).float())


def test_far_out(case) -> None:
    data, _, _, _ = case
    far = torch.tensor([[30.0, 10.0], [-1e4, 1e3], [1e12, -1e12], [1e200, 1.0]], dtype=torch.float64)
    value = data.log_prob(far)
    outside = isinstance(data, CheckerboardDataModule)
    assert bool((torch.isneginf(value) if outside else torch.isfinite(value)).all()), value
    assert outside or bool((value.diff() < 0).all())
    odd = torch.tensor([[math.inf, 0.0], [-math.inf, math.inf], [math.nan, 0.0], [math.inf, math.nan]])
    assert torch.isneginf(data.log_prob(odd)).tolist() == [True, True, False, False]
    assert torch.isnan(data.log_prob(odd)).tolist() == [False, False, True, True]


def test_gradient_is_finite_everywhere(case) -> None:
    data, _, _, _ = case
    points = torch.tensor([[0.0, 0.0], [1.0, -1.5], [7.0, 5.0], [1e5, 1e5]], requires_grad=True)
    value = data.log_prob(points)
    (gradient,) = torch.autograd.grad(value[torch.isfinite(value)].sum(), points)
    assert bool(torch.isfinite(gradient).all())


def test_no_rows_and_one_row(case) -> None:
    data, points, log_density, _ = case
    assert data.log_prob(points[:0]).shape == (0,)
    middle = len(points) // 2 + 31
    torch.testing.assert_close(data.log_prob(points[middle : middle + 1]), log_density[middle : middle + 1])


def test_hyperparameters_are_plain_and_none_is_named_as_one_of_the_model(case) -> None:
    data, _, _, _ = case
    assert all(value is None or isinstance(value, (int, float, str)) for value in data.hparams.values())
    # Lightning refuses equal keys of unequal values in model and data
    assert not {"parameterization", "network", "optimizer", "lr_scheduler", "partition"} & set(data.hparams)


def test_base_class_says_what_is_missing() -> None:
    data = PlanarDataModule(name="nothing")
    with pytest.raises(NotImplementedError, match="plane_draw"):
        data.draw(1, torch.Generator())
    with pytest.raises(NotImplementedError, match="plane_log_prob"):
        data.log_prob(torch.zeros(1, 2))
    with pytest.raises(NotImplementedError, match="plane_entropy"):
        _ = data.entropy
    assert Integral(1.0, 0.5).error == 0.5


def test_checks_name_the_argument_the_value_and_the_way_out() -> None:
    assert check_choice({"a": 1, "b": 2}, letter="b") == 2
    with pytest.raises(ValueError, match=r"letter must be one of \['a', 'b'\], got 'c'"):
        check_choice({"a": 1, "b": 2}, letter="c")
    with pytest.raises(ValueError, match=r"noise must be positive and finite, got nan"):
        check_width(1.0, noise=math.nan)
    with pytest.raises(ValueError, match=r"noise 0.001 is too narrow .* 10 wide: give at least 0.002"):
        check_width(10.0, noise=0.001)
