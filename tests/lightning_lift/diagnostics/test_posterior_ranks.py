import math

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lightning_lift.diagnostics import calibration_figure, expected_coverage, rank_statistics
from lightning_lift.diagnostics.posterior_ranks import rank_bins


def posterior_draws(widening: float = 1.0, shift: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """theta ~ N(0, I_2), x = theta + N(0, I_2): the posterior is N(x / 2, I / 2), here widened and shifted."""
    source = torch.Generator().manual_seed(0)
    theta = torch.randn(1000, 2, generator=source)
    mean = (theta + torch.randn(1000, 2, generator=source)) / 2.0 + shift
    deviation = widening * math.sqrt(0.5)
    draws = mean + deviation * torch.randn(130, 1000, 2, generator=source)
    log_prob = [-((points - mean) / deviation).square().sum(-1) / 2.0 for points in (theta, draws)]
    return theta, draws, *log_prob


def test_the_right_posterior_has_uniform_ranks_and_the_stated_coverage() -> None:
    theta, draws, of_theta, of_draws = posterior_draws()
    ranks, coverage = rank_statistics(theta, draws), expected_coverage(of_theta, of_draws)
    assert ranks.ranks.shape == (1000, 2) and ranks.num_draws == 130
    assert ranks.p_value == pytest.approx(min(1.0, 2.0 * float(ranks.p_values.min())))
    assert ranks.p_value > 0.01 and coverage.p_value > 0.01
    assert ((coverage.coverage - coverage.levels).abs() <= 4.0 * coverage.standard_error).all()
    assert coverage.coverage[[0, -1]].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("widening", "shift"), [(0.8, 0.0), (1.25, 0.0), (1.0, 0.2)])
def test_a_wrong_posterior_is_found_out(widening: float, shift: float) -> None:
    assert rank_statistics(*posterior_draws(widening, shift)[:2]).p_value < 1e-4


@pytest.mark.parametrize("widening", [0.7, 1.4])
def test_coverage_of_a_gaussian_of_another_width(widening: float) -> None:
    """|theta - mean|^2 has twice an exponential variable's law: the region of level c holds 1 - (1 - c)^(w^2)."""
    coverage = expected_coverage(*posterior_draws(widening)[2:])
    expected = 1.0 - (1.0 - coverage.levels) ** (widening**2)
    assert ((coverage.coverage - expected).abs() <= 4.0 * coverage.standard_error + 1e-12).all()
    assert coverage.p_value < 1e-4


@pytest.mark.parametrize(("count", "num_draws"), [(60, 11), (203, 25), (400, 1), (101, 200)])
def test_p_values_are_uniform_whatever_the_number_of_draws(count: int, num_draws: int) -> None:
    """Bins of unequal width have counts of their own; too few ranks or simulations make fewer bins."""
    source = torch.Generator().manual_seed(1)
    truths, draws = torch.randn(count, 400, generator=source), torch.randn(num_draws, count, 400, generator=source)
    p_values = rank_statistics(truths, draws).p_values
    for level in (0.05, 0.5):
        error = math.sqrt(level * (1.0 - level) / 400)
        assert float((p_values < level).double().mean()) == pytest.approx(level, abs=4.0 * error)
    edges, expected = rank_bins(count, num_draws)
    assert expected.sum() == pytest.approx(count) and expected.min() >= 5.0
    assert (edges[0], edges[-1]) == (-0.5, num_draws + 0.5)


def test_ranks_by_hand_and_coverage_of_each_rank_once() -> None:
    draws = torch.arange(12.0).reshape(12, 1, 1).expand(12, 13, 1)
    truths = torch.arange(13.0).unsqueeze(1) - 0.5
    assert rank_statistics(truths, draws).ranks.squeeze(1).tolist() == list(range(13))
    coverage = expected_coverage(truths.squeeze(1), draws.squeeze(2), num_levels=8)
    torch.testing.assert_close(coverage.coverage, coverage.levels)


def test_what_cannot_be_judged_is_refused() -> None:
    truths, draws = torch.zeros(50, 2), torch.zeros(10, 50, 2)
    with pytest.raises(ValueError, match=r"\(L, N, D\)"):
        rank_statistics(truths, draws.transpose(0, 1))
    with pytest.raises(ValueError, match="not finite"):
        rank_statistics(truths, draws.index_fill(1, torch.tensor([3]), torch.nan))
    with pytest.raises(ValueError, match="9 simulations are too few"):
        rank_statistics(truths[:9], draws[:, :9])


def test_the_figure_says_what_was_found() -> None:
    theta, draws, of_theta, of_draws = posterior_draws(0.8)
    ranks = rank_statistics(theta, draws)
    figure = calibration_figure(ranks, expected_coverage(of_theta, of_draws), ["slope", "offset"])
    assert isinstance(figure, Figure)
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.split(":")[0] for title in titles] == ["slope", "offset", "highest density"]
    assert f"p = {float(ranks.p_values[0]):.2g}" in titles[0]
    (line,) = (line for line in figure.axes[2].lines if line.get_color() == "C0")
    assert (line.get_ydata() <= line.get_xdata() + 1e-9).mean() > 0.9, "too narrow: coverage below the level"
    with pytest.raises(ValueError, match="1 names for 2"):
        calibration_figure(ranks, names=["slope"])
