"""B x B Gram matrices of paired rows: everything about a d x d cross-covariance without ever forming it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_COLUMNS = 1 << 16  # float64 copies of 64 rows then take 32 MiB each, whatever d is


@dataclass(frozen=True)
class PairedGram:
    """Gram matrices of the centred rows L and G (B, d) of a cross-covariance S = L^T G / (B - 1).

    Attributes:
        left: L L^T, shape (B, B), float64 on the CPU.
        right: G G^T, shape (B, B).
        cross: L G^T, shape (B, B).
    """

    left: Tensor
    right: Tensor
    cross: Tensor

    @property
    def trace(self) -> float:
        """tr S."""
        return self.cross.trace().item() / (len(self.cross) - 1)

    @property
    def frobenius(self) -> float:
        """|S|_F, from |L^T G|_F^2 = <L L^T, G G^T>."""
        return math.sqrt(self._squared_norm()) / (len(self.cross) - 1)

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

    def permutation_p_values(self, num_permutations: int, generator: torch.Generator) -> tuple[float, float]:
        """p = (1 + hits) / (1 + n) under shuffles of which gradient row goes with which latent row.

        Args:
            num_permutations: n.
            generator: CPU generator of the shuffles.

        Returns:
            One-sided p of |S|_F, two-sided p of tr S.
        """
        norm, trace = self._squared_norm(), self.cross.trace().abs().item()
        norm_hits = trace_hits = 0
        for _ in range(num_permutations):
            order = torch.randperm(len(self.cross), generator=generator)
            # The room is for rounding: a shuffle that changes nothing must count as a hit.
            norm_hits += (self.left * self.right[order][:, order]).sum().item() >= norm * (1.0 - 1e-12)
            trace_hits += self.cross[:, order].trace().abs().item() >= trace * (1.0 - 1e-12)
        return (1 + norm_hits) / (1 + num_permutations), (1 + trace_hits) / (1 + num_permutations)

    def _squared_norm(self) -> float:
        return max((self.left * self.right).sum().item(), 0.0)


def paired_gram(left: Tensor, right: Tensor) -> PairedGram:
    """Gram matrices of paired rows after centring, in float64 on the CPU, a block of columns at a time.

    Args:
        left: shape (B, d).
        right: shape (B, d).
    """
    size = left.shape[0]
    grams = torch.zeros(3, size, size, dtype=torch.float64)
    for a, b in zip(torch.split(left, _COLUMNS, 1), torch.split(right, _COLUMNS, 1), strict=True):
        a, b = _centred(a), _centred(b)
        grams += torch.stack([a @ a.T, b @ b.T, a @ b.T])
    return PairedGram(*grams)


def frobenius_norm(rows: Tensor) -> float:
    """|rows|_F in float64, a block of columns at a time."""
    return math.sqrt(sum(part.cpu().double().square().sum().item() for part in torch.split(rows, _COLUMNS, 1)))


def _centred(rows: Tensor) -> Tensor:
    rows = rows.detach().cpu().double()
    # Taking the first row off first makes rows that are all the same exactly zero, not zero up to rounding.
    rows = rows - rows[:1]
    return rows - rows.mean(0)
