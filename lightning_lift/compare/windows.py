"""Windows of quadrature of several seeds: their grids side by side, and which of them must move."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_lift.partition.grids import grid_points, trapezoid_log_weights
from lightning_lift.partition.quadrature import MAX_MOVES, Quadrature
from lightning_lift.partition.tails import ellipse_points, log_tails_from_ellipse

# Seeds whose window is this near to being given up, relative to its width, are asked one by one.
_DOUBTFUL = 0.61


class StackedWindows:
    """The training grids of S quadratures, each following its own density.

    Every decision is that of ``Quadrature.follow``; here only those are sorted out, all at once, that will surely not
    move.

    Args:
        quadratures: prepared, of equal settings and supports.
        dim: D.
        like: gives dtype and device.

    Attributes:
        points: the grids, shape (S, G, D).
        log_weights: of the trapezoidal rule, shape (S, G).
        rays: points of the ellipses in the windows, shape (S, M, 2) in the plane, else None.
    """

    rays: Tensor | None

    def __init__(self, quadratures: Sequence[Quadrature], dim: int, like: Tensor) -> None:
        self.quadratures = tuple(quadratures)
        self.dim = dim
        self.size = quadratures[0].grid_size(dim, training=True)
        self._is_open = bool(quadratures[0].open_sides.any())
        boxes = [quadrature.window.to(like) for quadrature in quadratures]
        self._boxes = torch.stack(boxes)
        self.points = torch.stack([grid_points(box, self.size) for box in boxes])
        self.log_weights = torch.stack([trapezoid_log_weights(box, self.size) for box in boxes])
        in_plane = dim == 2 and self._is_open
        self.rays = torch.stack([ellipse_points(box) for box in boxes]) if in_plane else None

    def follow(
        self,
        seeds: Sequence[int],
        energies: Tensor,
        log_masses: Tensor,
        on_rays: Sequence[Tensor],
        alive: Sequence[bool],
    ) -> list[int]:
        """Moves the windows that must be moved.

        Args:
            seeds: n of the S, those that the tensors are about.
            energies: E on their ``points``, shape (n, G), without gradient.
            log_masses: log Z, shape (n,).
            on_rays: E and grad E on their ``rays``, shapes (n, M) and (n, M, 2); nothing on the line.
            alive: of all S, those that still train; the windows of others stay.

        Returns:
            The seeds whose window has moved: everything of theirs must be computed again.
        """
        if not self._is_open:
            return []
        masses, boxes = log_masses.tolist(), self._boxes[seeds]
        if self.rays is None:
            log_tails = self._log_tails_on_line(energies, boxes)
        else:
            values, gradients = on_rays
            log_tails = log_tails_from_ellipse(values, gradients, boxes).tolist()
        settled = self._surely_settled(energies, masses, log_tails)
        moved = []
        for place, seed in enumerate(seeds):
            if not alive[seed] or settled[place]:
                continue
            quadrature, own = self.quadratures[seed], energies[place]
            tail = quadrature.log_tail_on_line(own, self.size) if self.dim == 1 else log_tails[place]
            if quadrature.follow(own, masses[place], tail, self.size):
                self._place(seed)
                moved.append(seed)
        return moved

    def never_ends(self, seed: int) -> str:
        """What to say of a window that has moved ``MAX_MOVES`` times in one step."""
        return self.quadratures[seed].never_ends()

    @property
    def max_moves(self) -> int:
        """Moves of a window in one step after which its density is given up."""
        return MAX_MOVES

    def _place(self, seed: int) -> None:
        box = self.quadratures[seed].window.to(self._boxes)
        self._boxes[seed] = box
        self.points[seed] = grid_points(box, self.size)
        self.log_weights[seed] = trapezoid_log_weights(box, self.size)
        if self.rays is not None:
            self.rays[seed] = ellipse_points(box)

    def _log_tails_on_line(self, energies: Tensor, boxes: Tensor) -> list[float]:
        widths = (boxes[:, 1, 0] - boxes[:, 0, 0]).tolist()
        edges = energies[:, [0, 1, -2, -1]].double().tolist()
        sides = self.quadratures[0].open_sides[:, 0].tolist()
        tails = []
        for width, (left, second, before, right) in zip(widths, edges, strict=True):
            rises = [(left, left - second), (right, right - before)]
            bounds = [
                -energy - math.log(rise * (self.size - 1) / width) if rise > 0.0 else math.inf
                for (energy, rise), is_open in zip(rises, sides, strict=True)
                if is_open
            ]
            tails.append(max(bounds) + math.log(2.0))
        return tails

    def _surely_settled(self, energies: Tensor, masses: list[float], log_tails: list[float]) -> list[bool]:
        """Whether the tail is covered and no side of the level set is far inside: ``follow`` would do nothing."""
        quadrature = self.quadratures[0]
        shape = [len(energies)] + [self.size] * self.dim
        inside = (energies - energies.amin(1, keepdim=True) < quadrature.level).view(shape)
        narrow = torch.zeros(len(energies), dtype=torch.bool, device=energies.device)
        for axis in range(self.dim):
            along = inside if self.dim == 1 else inside.any(2 - axis)
            ones = along.to(torch.uint8)
            first, last = ones.argmax(1), self.size - 1 - ones.flip(1).argmax(1)
            margin = (0.1 if self.dim == 1 else 0.35) * (last - first).clamp(min=4)
            low = torch.where(first == 0, -0.5 * (self.size - 1), first - margin)
            high = torch.where(last == self.size - 1, 1.5 * (self.size - 1), last + margin)
            lower_open, upper_open = quadrature.open_sides[:, axis].tolist()
            low = low if lower_open else torch.zeros_like(low)  # closed sides stay
            high = high if upper_open else torch.full_like(high, self.size - 1.0)
            narrow |= ~(high - low >= _DOUBTFUL * (self.size - 1))
        limit = math.log(quadrature.tail_tolerance)
        return [
            math.isfinite(mass) and tail - mass <= limit and not tight
            for mass, tail, tight in zip(masses, log_tails, narrow.tolist(), strict=True)
        ]
