"""Emissions: the part of the lift that turns the code of a batch into a latent for every weight. One interface."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EmissionName = Literal["dense", "low_rank", "row_column", "shared_basis"]
_DEFAULT_RANKS = {"low_rank": 16, "shared_basis": 2}


class Emission(nn.Module, ABC):
    """Linear or bilinear in its own parameters; a code (F,) in, one number for each of d weights out.

    Subclass requirements:
        - ``forward(code)`` maps (F,) to (d,), the tensors flattened one after the other;
        - ``zero_()`` makes the output exactly zero for every code, and leaves a gradient that is not zero: of two
          factors one goes to zero, never both.

    Attributes:
        shapes: of the emitted tensors, each seen as a matrix (out, in): (n,) is (n, 1), and what follows the first
            axis is one axis.
    """

    def __init__(self, shapes: Sequence[torch.Size]) -> None:
        super().__init__()
        self.shapes = tuple(_as_matrix(shape) for shape in shapes)

    @abstractmethod
    def forward(self, code: Tensor) -> Tensor:
        """What is added to the slack: (F,) to (d,)."""

    @abstractmethod
    def zero_(self) -> None:
        """Emit zero for every code from here on, until the next step of training."""


class DenseEmission(Emission):
    """Theta_E z with a full matrix: F numbers for each weight (arXiv 2605.24274).

    Args:
        code_size: F.
        shapes: of the emitted tensors.
    """

    def __init__(self, code_size: int, shapes: Sequence[torch.Size]) -> None:
        super().__init__(shapes)
        size = sum(rows * columns for rows, columns in self.shapes)
        self.weight = nn.Parameter(torch.empty(size, code_size))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear: variance 1 / (3 F)

    def forward(self, code: Tensor) -> Tensor:
        """(F,) to (d,)."""
        return F.linear(code, self.weight)

    def zero_(self) -> None:
        """The matrix is zero; its gradient is the outer product of the latent's and the code."""
        nn.init.zeros_(self.weight)


class LowRankEmission(Emission):
    r"""For each tensor U diag(s(z)) V, with s linear in the code: rank (out + in + F) numbers a tensor.

    Args:
        code_size: F.
        shapes: of the emitted tensors.
        rank: terms r: U is (out, r), s is (r,), V is (r, in).
    """

    def __init__(self, code_size: int, shapes: Sequence[torch.Size], rank: int) -> None:
        super().__init__(shapes)
        self.rank = rank
        self.scale = nn.Linear(code_size, rank * len(self.shapes), bias=False)
        # Entries of the emitted matrix then have the spread of a dense emission at its own start, about 0.6.
        self.left = nn.ParameterList(torch.randn(rows, rank) / math.sqrt(rank) for rows, _ in self.shapes)
        self.right = nn.ParameterList(torch.randn(rank, columns) for _, columns in self.shapes)

    def forward(self, code: Tensor) -> Tensor:
        """(F,) to (d,)."""
        scales = self.scale(code).view(-1, self.rank)
        pieces = zip(self.left, scales, self.right, strict=True)
        return torch.cat([((left * scale) @ right).reshape(-1) for left, scale, right in pieces])

    def zero_(self) -> None:
        """The left factors are zero; their gradient is not, as scales and right factors stay."""
        for left in self.left:
            nn.init.zeros_(left)


class RowColumnEmission(Emission):
    """For each tensor row(z)[:, None] + column(z)[None, :], both linear in the code: F (out + in) numbers a tensor.

    The modulation is added. A multiplied one, slack * (1 + row + column), would make d latent / d slack differ from one
    weight to the next, and the slack reading of the cross-covariance rests on its being the same for all.

    Args:
        code_size: F.
        shapes: of the emitted tensors.
    """

    def __init__(self, code_size: int, shapes: Sequence[torch.Size]) -> None:
        super().__init__(shapes)
        self.sizes = [size for shape in self.shapes for size in shape]
        self.weight = nn.Parameter(torch.empty(sum(self.sizes), code_size))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, code: Tensor) -> Tensor:
        """(F,) to (d,)."""
        parts = F.linear(code, self.weight).split(self.sizes)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return torch.cat([(row[:, None] + column).reshape(-1) for row, column in pairs])

    def zero_(self) -> None:
        """The matrix is zero; its gradient holds the latent's summed over rows and columns."""
        nn.init.zeros_(self.weight)


class SharedBasisEmission(Emission):
    r"""For each tensor sum_k c_k(z) B_k, with c linear in the code; tensors of one shape share their basis B.

    rank * out * in numbers for each *distinct* shape, and rank * F for each tensor.

    Args:
        code_size: F.
        shapes: of the emitted tensors.
        rank: matrices B_k of a basis.
    """

    def __init__(self, code_size: int, shapes: Sequence[torch.Size], rank: int) -> None:
        super().__init__(shapes)
        self.rank = rank
        distinct = list(dict.fromkeys(self.shapes))
        self.groups = [[i for i, shape in enumerate(self.shapes) if shape == one] for one in distinct]
        self.coefficient = nn.Linear(code_size, rank * len(self.shapes), bias=False)
        self.basis = nn.ParameterList(torch.randn(rank, rows * columns) / math.sqrt(rank) for rows, columns in distinct)

    def forward(self, code: Tensor) -> Tensor:
        """(F,) to (d,)."""
        coefficients = self.coefficient(code).view(-1, self.rank)
        pieces: dict[int, Tensor] = {}
        for group, basis in zip(self.groups, self.basis, strict=True):
            emitted = coefficients[group] @ basis
            pieces |= dict(zip(group, emitted, strict=True))
        return torch.cat([pieces[i] for i in range(len(self.shapes))])

    def zero_(self) -> None:
        """The basis is zero; its gradient is not, as the coefficients stay."""
        for basis in self.basis:
            nn.init.zeros_(basis)


def make_emission(
    kind: EmissionName, code_size: int, shapes: Sequence[torch.Size], rank: int | None = None
) -> Emission:
    """An emission by name.

    Args:
        kind: ``dense``, ``low_rank``, ``row_column`` or ``shared_basis``.
        code_size: length F of the code.
        shapes: of the emitted tensors, in flattening order.
        rank: terms of ``low_rank`` (None: 16) or matrices of ``shared_basis`` (None: 2).

    Raises:
        ValueError: an unknown name, or a rank that does not fit.
    """
    check_emission(kind, rank)
    if kind == "dense":
        return DenseEmission(code_size, shapes)
    if kind == "row_column":
        return RowColumnEmission(code_size, shapes)
    rank = _DEFAULT_RANKS[kind] if rank is None else rank
    return (
        LowRankEmission(code_size, shapes, rank) if kind == "low_rank" else SharedBasisEmission(code_size, shapes, rank)
    )


def check_emission(kind: str, rank: int | None) -> None:
    """Refuse an emission that cannot be made.

    Args:
        kind: its name.
        rank: its terms or matrices, None for the default.

    Raises:
        ValueError: an unknown kind, a rank for a kind without one, or one below 1.
    """
    if kind not in get_args(EmissionName):
        raise ValueError(f"emission={kind!r} is not known; choose one of {', '.join(get_args(EmissionName))}.")
    if rank is not None and kind not in _DEFAULT_RANKS:
        raise ValueError(f"emission_rank={rank} with emission={kind!r}: only low_rank and shared_basis have a rank.")
    if rank is not None and rank < 1:
        raise ValueError(f"emission_rank={rank}: at least one term.")


def _as_matrix(shape: torch.Size) -> tuple[int, int]:
    rows = shape[0] if shape else 1
    return rows, math.prod(shape[1:])
