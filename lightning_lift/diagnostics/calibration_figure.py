"""A figure of a posterior's calibration. Pure: statistics in, a figure out, no pyplot."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binom

from lightning_lift.diagnostics.posterior_ranks import ExpectedCoverage, RankStatistics, rank_bins

_BAND = 0.99  # of the counts that uniform ranks give
_COLUMNS = 4


def calibration_figure(
    ranks: RankStatistics, coverage: ExpectedCoverage | None = None, names: Sequence[str] | None = None
) -> Figure:
    """Draw histograms of ranks, and coverage against credible levels where it is given.

    Uniform ranks stay within the grey band in 99 % of the bins. A posterior that is too narrow piles ranks up at both
    ends, one that is too wide in the middle, one that is displaced at one end.

    Args:
        ranks: what ``rank_statistics`` gave.
        coverage: what ``expected_coverage`` gave.
        names: of the D parameters; None for x1, x2, ...

    Raises:
        ValueError: another number of names than of parameters.
    """
    dim = ranks.ranks.shape[1]
    names = [f"x{i + 1}" for i in range(dim)] if names is None else list(names)
    if len(names) != dim:
        raise ValueError(f"{len(names)} names for {dim} parameters: give one for each.")
    panels = dim + (coverage is not None)
    columns = min(panels, _COLUMNS)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(3.2 * columns + 0.4, 2.7 * rows + 0.4), layout="constrained")
    drawn = list(figure.subplots(rows, columns, squeeze=False).flat)
    count, num_draws = len(ranks.ranks), ranks.num_draws
    edges, expected = rank_bins(count, num_draws)
    share, positions = expected / count, (edges + 0.5) / (num_draws + 1)
    width = np.diff(positions)
    low, high = (binom.ppf(tail, count, share) / count / width for tail in ((1 - _BAND) / 2, (1 + _BAND) / 2))
    for i, (axes, name) in enumerate(zip(drawn, names, strict=False)):
        heights = np.histogram(ranks.ranks[:, i].numpy(), edges)[0] / count / width
        axes.stairs(high, positions, baseline=low, fill=True, color="0.85")
        axes.axhline(1.0, color="0.5", linewidth=0.8)
        axes.stairs(heights, positions, color="C0", linewidth=1.4)
        axes.set_xlim(0.0, 1.0)
        axes.set_ylim(0.0, 1.1 * max(float(heights.max()), float(high.max())))
        axes.set_title(f"{name}: p = {float(ranks.p_values[i]):.2g}", fontsize="medium")
        axes.set_xlabel("rank of the truth / draws")
    if coverage is not None:
        axes, level = drawn[dim], coverage.levels.numpy()
        low, high = (binom.ppf(tail, count, level) / count for tail in ((1 - _BAND) / 2, (1 + _BAND) / 2))
        axes.fill_between(level, low, high, color="0.85", linewidth=0.0)
        axes.plot(level, level, color="0.5", linewidth=0.8)
        axes.plot(level, coverage.coverage.numpy(), color="C0", linewidth=1.4)
        axes.set_title(f"highest density: p = {coverage.p_value:.2g}", fontsize="medium")
        axes.set_xlabel("credible level")
        axes.set_ylabel("coverage")
        axes.set_xlim(0.0, 1.0)
        axes.set_ylim(0.0, 1.0)
    for axes in drawn[panels:]:
        axes.set_axis_off()
    figure.suptitle(f"{count} simulations, {num_draws} draws each; p of all parameters {ranks.p_value:.2g}")
    return figure
