"""Kaplan-Meier survival of lengths of which some are only known to be at least so long."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SurvivalCurve:
    """The product-limit estimate S(t) = P(length > t), a step function that falls at the lengths seen to end.

    S(t) = prod over t_i <= t of (1 - d_i / n_i), with d_i lengths that end at t_i of the n_i that are at least so long
    (Kaplan and Meier, 1958). What is censored at t_i was still there at t_i, and counts in n_i.

    Attributes:
        times: the distinct lengths t_i, ended or censored, ascending, shape (K,), float64.
        survival: S(t_i), shape (K,).
        error: standard error of S(t_i), shape (K,): S sqrt(sum d / (n (n - d))) (Greenwood, 1926); 0 where S is 0.
        at_risk: n_i, shape (K,), int64.
        ended: d_i, shape (K,), int64.
        censored: how many are censored at t_i, shape (K,), int64.
    """

    times: Tensor
    survival: Tensor
    error: Tensor
    at_risk: Tensor
    ended: Tensor
    censored: Tensor

    @property
    def median(self) -> float:
        """The first length at which S is at most one half; infinite where it stays above, NaN without lengths."""
        if not len(self.times):
            return float("nan")
        below = self.survival <= 0.5 + 1e-12  # a product of fractions that is one half may round above it
        return self.times[below][0].item() if bool(below.any()) else float("inf")

    @property
    def restricted_mean(self) -> float:
        """The area under S up to the longest length: the mean length where the longest one has ended, else a bound.

        NaN without lengths.
        """
        if not len(self.times):
            return float("nan")
        zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        widths = torch.cat([zero, self.times]).diff()
        return (widths * torch.cat([one, self.survival])[:-1]).sum().item()


def kaplan_meier_of_counts(lengths: Tensor, ended: Tensor, censored: Tensor) -> SurvivalCurve:
    """The product-limit estimate from a histogram: as exact as from the single lengths, whatever their number.

    ``scipy.stats.ecdf`` of ``scipy.stats.CensoredData`` gives the same from single lengths, of which a training has
    millions.

    Args:
        lengths: distinct, nonnegative, in any order, shape (K,).
        ended: how many ended at each length, shape (K,).
        censored: how many were censored at each length, shape (K,).

    Raises:
        ValueError: shapes that differ, lengths that repeat, are negative or not finite, or negative counts.
    """
    if lengths.ndim != 1 or not lengths.shape == ended.shape == censored.shape:
        raise ValueError(
            f"lengths {tuple(lengths.shape)}, ended {tuple(ended.shape)} and censored {tuple(censored.shape)} must be "
            "one shape (K,)."
        )
    times, order = torch.sort(lengths.detach().cpu().double())
    if not bool((times.isfinite() & (times >= 0.0)).all()) or bool((times.diff() == 0.0).any()):
        raise ValueError("lengths must be distinct, finite and nonnegative.")
    ended, censored = ended.cpu().long()[order], censored.cpu().long()[order]
    if bool((ended < 0).any() | (censored < 0).any()):
        raise ValueError("counts of lengths must not be negative.")
    leaving = ended + censored
    # Those at least as long: a reversed running sum. Integers, so nothing is lost at any number of visits.
    at_risk = leaving.flip(0).cumsum(0).flip(0)
    survival = torch.where(at_risk > 0, 1.0 - ended.double() / at_risk.clamp(min=1).double(), 1.0).cumprod(0)
    hazard = ended.double() / (at_risk.double() * (at_risk - ended).double())
    error = survival * hazard.nan_to_num(nan=0.0).cumsum(0).sqrt()
    # Where the last one at risk has ended, S is 0 and Greenwood's sum infinite.
    return SurvivalCurve(times, survival, error.nan_to_num(nan=0.0), at_risk, ended, censored)
