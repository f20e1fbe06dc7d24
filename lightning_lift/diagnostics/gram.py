"""B x B Gram matrices of paired rows: everything about a d x d cross-covariance without ever forming it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

COLUMNS = 1 << 16  # float64 copies of 64 rows then take 32 MiB each, whatever d is


class PermutationNull(NamedTuple):
    """What shuffles of the pairing give.

    Attributes:
        p_value: one-sided, of |S|_F.
        p_value_trace: two-sided, of tr S.
        frobenius: root mean square of |S|_F over the shuffles: what B rows read where nothing is coupled.
    """

    p_value: float
    p_value_trace: float
    frobenius: float


class JackknifeErrors(NamedTuple):
    """Jackknife standard errors.

    Attributes:
        trace: of tr S.
        frobenius: of |S|_F; rough where S is zero within its noise, as the norm is not smooth there.
    """

    trace: float
    frobenius: float


@dataclass(frozen=True)
class PairedGram:
    """Gram matrices of the rows L and G (B, d), centred or detrended, of a cross-covariance S = L^T G / (B - k).

    Attributes:
        left: L L^T, shape (B, B), float64 on the CPU.
        right: G G^T, shape (B, B).
        cross: L G^T, shape (B, B).
        times: of the rows, shape (B,), where a straight line in time was taken off each column (k = 2); None where
            only the mean was (k = 1).
    """

    left: Tensor
    right: Tensor
    cross: Tensor
    times: Tensor | None = None

    @property
    def freedom(self) -> int:
        """B - k, the divisor of S."""
        return len(self.cross) - (1 if self.times is None else 2)

    @property
    def trace(self) -> float:
        """tr S."""
        return self.cross.trace().item() / self.freedom

    @property
    def frobenius(self) -> float:
        """|S|_F, from |L^T G|_F^2 = <L L^T, G G^T>."""
        return math.sqrt(self._squared_norm()) / self.freedom

    @property
    def asymmetry(self) -> float:
        """|S - S^T|_F / |S|_F, in [0, 2]; 0 where S is zero.

        From |S - S^T|_F^2 = 2 |S|_F^2 - 2 tr(S S) and tr(L^T G L^T G) = tr(L G^T L G^T).
        """
        norm = self._squared_norm()
        if norm == 0.0:
            return 0.0
        squared = 2.0 - 2.0 * (self.cross * self.cross.T).sum().item() / norm
        return math.sqrt(min(max(squared, 0.0), 4.0))

    def permutation_null(self, num_permutations: int, generator: torch.Generator) -> PermutationNull:
        """p = (1 + hits) / (1 + n) under shuffles of which gradient row goes with which latent row.

        Detrended rows are orthogonal to 1 and time; shuffled, they are not, and would read less than unrelated rows do.
        They are shuffled in B - 2 coordinates of the complement of both (Huh and Jhun, 2001).

        Args:
            num_permutations: n.
            generator: CPU generator of the shuffles.
        """
        grams = torch.stack([self.left, self.right, self.cross])
        if self.times is not None:
            # Householder's basis: each vector is nearly one row, so that rows of unequal sizes stay exchangeable. (A
            # random rotation mixes them, and rejects 15-20 % of heavy-tailed noise at the 5 % level.)
            basis = torch.linalg.qr(self._design(), mode="complete").Q[:, 2:]
            grams = basis.T @ grams @ basis
        left, right, cross = grams
        norm, trace = (left * right).sum().item(), cross.trace().abs().item()
        norm_hits = trace_hits = 0
        total = 0.0
        for _ in range(num_permutations):
            order = torch.randperm(len(cross), generator=generator)
            shuffled = (left * right[order][:, order]).sum().item()
            total += max(shuffled, 0.0)
            # The room is for rounding: a shuffle that changes nothing must count as a hit.
            norm_hits += shuffled >= norm * (1.0 - 1e-12)
            trace_hits += cross[:, order].trace().abs().item() >= trace * (1.0 - 1e-12)
        return PermutationNull(
            (1 + norm_hits) / (1 + num_permutations),
            (1 + trace_hits) / (1 + num_permutations),
            math.sqrt(total / num_permutations) / self.freedom,
        )

    def jackknife(self, block: int = 1) -> JackknifeErrors:
        """Delete-a-block jackknife standard errors, from n blocks of neighbouring rows.

        var = (n - 1) / n sum_j (t_j - mean t)^2 with t_j the statistic without block j (Efron and Stein, 1981; blocks:
        Kuensch, 1989). Rows that depend on their neighbours need blocks longer than that dependence.

        Args:
            block: rows of a block; 1 for independent rows.

        Raises:
            ValueError: fewer than two blocks, or too few rows left without one.
        """
        size = len(self.cross)
        num_blocks = size // block if block >= 1 else 0
        if num_blocks < 2 or size - -(-size // num_blocks) <= size - self.freedom:
            raise ValueError(f"block={block} of {size} rows: the jackknife needs at least two blocks, and rows beside.")
        design = self._design()
        norm, trace = self._squared_norm(), self.cross.trace().item()
        norms, traces = [], []
        for out in torch.arange(size).tensor_split(num_blocks):
            # Without the rows J, and with what is left centred (and detrended) anew, L^T G turns into
            # L^T G - L_J^T C G_J with C = I + D_J (D^T D - D_J^T D_J)^-1 D_J^T, D the columns 1 (and time).
            own = design[out]
            rest = design.T @ design - own.T @ own
            change = torch.eye(len(out), dtype=torch.float64) + own @ torch.linalg.solve(rest, own.T)
            left, right = self.left[out], self.right[out]
            overlap = ((right @ left.T) * change).sum().item()
            squared = (change @ left[:, out] * (right[:, out] @ change)).sum().item()
            freedom = self.freedom - len(out)
            norms.append(math.sqrt(max(norm - 2.0 * overlap + squared, 0.0)) / freedom)
            traces.append((trace - (self.cross[out][:, out] * change).sum().item()) / freedom)
        return JackknifeErrors(*(jackknife_error(torch.tensor(x, dtype=torch.float64)) for x in (traces, norms)))

    def _design(self) -> Tensor:
        """What was taken off each column: 1, and time of unit length; shape (B, k)."""
        ones = torch.ones(len(self.cross), dtype=torch.float64)
        if self.times is None:
            return ones[:, None]
        line = self.times - self.times.mean()
        return torch.stack([ones, line / line.norm()], 1)

    def _squared_norm(self) -> float:
        return max((self.left * self.right).sum().item(), 0.0)


def jackknife_error(without: Tensor) -> float:
    """Jackknife standard error from the statistic without each of n blocks, shape (n,)."""
    count = len(without)
    return ((without.double() - without.double().mean()).square().sum() * (count - 1) / count).sqrt().item()


def paired_gram(left: Tensor, right: Tensor, times: Tensor | None = None) -> PairedGram:
    """Gram matrices of paired rows after centring, in float64 on the CPU, a block of columns at a time.

    Args:
        left: shape (B, d).
        right: shape (B, d).
        times: of the rows, shape (B,): a straight line in time is taken off each column, not its mean alone.

    Raises:
        ValueError: times that do not fit, or do not differ.
    """
    size = left.shape[0]
    if times is not None:
        times = times.detach().cpu().double()
        if times.shape != (size,) or bool((times == times[0]).all()):
            raise ValueError(f"times of shape {tuple(times.shape)} for {size} rows: give one a row, not all the same.")
    grams = torch.zeros(3, size, size, dtype=torch.float64)
    for a, b in zip(torch.split(left, COLUMNS, 1), torch.split(right, COLUMNS, 1), strict=True):
        a, b = centred(a, times), centred(b, times)
        grams += torch.stack([a @ a.T, b @ b.T, a @ b.T])
    return PairedGram(grams[0], grams[1], grams[2], times)


def frobenius_norm(rows: Tensor) -> float:
    """|rows|_F in float64, a block of columns at a time."""
    return math.sqrt(sum(part.cpu().double().square().sum().item() for part in torch.split(rows, COLUMNS, 1)))


def centred(rows: Tensor, times: Tensor | None = None) -> Tensor:
    """Rows less the mean of each column, or less its least-squares line in time; float64 on the CPU.

    Args:
        rows: shape (B, d).
        times: of the rows, shape (B,).
    """
    rows = rows.detach().cpu().double()
    # Taking the first row off first makes rows that are all the same exactly zero, not zero up to rounding.
    rows = rows - rows[:1]
    rows = rows - rows.mean(0)
    if times is None:
        return rows
    line = times - times.mean()
    return rows - torch.outer(line, line @ rows) / (line @ line)
