"""Mixtures of many equal round bumps in the plane: log-density and entropy, to high accuracy and fast.

A curve with Gaussian noise around it is such a mixture, once the integral along the curve is a sum over nodes.
"""

import math

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from lightning_lift.datamodules.planar import Integral, PlanarDataModule

_NEGLIGIBLE = 45.0  # a component this much (nats) below another one changes no digit of float64, even as one of 10^4
_PAIRS = 2**18  # point-component pairs held at once: 2 MiB a temporary, so that they stay in the cache
_CELLS = 64  # at most so many cells along each side of the bounding square of the components
_UNDERFLOW = 36.0  # standard deviations: erfc is 0 in float64 a little farther out
_REACH = 8.5  # standard deviations: a Gaussian in the plane has a mass of 2e-16 farther out


class PlanarMixture:
    """Mixture of components of one shape: round Gaussians, or squares of even density blurred by a Gaussian.

    Args:
        centres: Centres of the components (K, 2), float64.
        weights: Their weights (K,), positive, of sum 1.
        std: Standard deviation of the Gaussian.
        side: Side of the square that the Gaussian blurs; 0 for plain Gaussians.
    """

    def __init__(self, centres: Tensor, weights: Tensor, std: float, side: float = 0.0) -> None:
        self.centres = centres.double()
        self._columns = self.centres.T.contiguous()
        self.log_weights = weights.double().log()
        self.std = std
        self.side = side
        # as measured: a cell costs a pass over all components, and a pair of point and square ten times as much as one
        # of point and Gaussian; below so many pairs, sorting into cells costs more than it saves
        self._cell, self._few = (8.0 * std, 2**23) if side == 0.0 else (3.0 * std, 2**20)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density. Components that contribute less than 1e-15 of it may be left out.

        Args:
            x: Finite points (N, 2), float64.

        Returns:
            Log-densities (N,), float64.
        """
        if x.shape[0] * self.centres.shape[0] <= self._few:
            return self._sum(x, torch.arange(self.centres.shape[0]))
        low, high = self.centres.amin(dim=0), self.centres.amax(dim=0)
        size = ((high - low).amax() / _CELLS).clamp(min=self._cell)
        cell = ((x.detach() - low) / size).floor().clamp(-_CELLS, 2 * _CELLS).long()
        order = torch.argsort(cell[:, 0] * (4 * _CELLS) + cell[:, 1])
        _, counts = torch.unique_consecutive(cell[order], dim=0, return_counts=True)
        groups = torch.split(x[order], counts.tolist())
        values = torch.cat([self._sum(group, self._relevant(group.detach())) for group in groups])
        return torch.empty_like(values).index_put((order,), values)

    def entropy(self, spacing: float = 0.35) -> Integral:
        """Integrate -p log p by the trapezoidal rule on a square grid, where the mass is.

        The rule converges faster than any power of the spacing (the integrand is analytic), so the difference to the
        grid of twice the spacing bounds the error with much to spare.

        Args:
            spacing: Spacing of the grid, in standard deviations.
        """
        step = spacing * self.std
        points, even = self._grid(step)
        log_density = self.log_prob(points)
        terms = -log_density * log_density.exp()
        fine, coarse = float(terms.sum()) * step**2, float(terms[even].sum()) * (2.0 * step) ** 2
        return Integral(fine, abs(fine - coarse) + 1e-13)

    def _grid(self, step: float) -> tuple[Tensor, Tensor]:
        """Return the grid points within reach of a component (M, 2), and which of them lie on every second line."""
        block = 8  # points along a side of the blocks that are kept or left as a whole
        margin = _REACH * self.std + 0.5 * self.side
        low, high = self.centres.amin(dim=0) - margin, self.centres.amax(dim=0) + margin
        counts = ((high - low) / (block * step)).ceil().long().tolist()
        corners = torch.cartesian_prod(*(torch.arange(count) * block for count in counts))
        middle = low + step * (corners.double() + 0.5 * (block - 1))
        # the corner of the square is as far as the diagonal from its centre
        reach = _REACH * self.std + math.sqrt(0.5) * (self.side + (block - 1) * step)
        distance, _ = cKDTree(self.centres.numpy()).query(middle.numpy(), distance_upper_bound=reach)
        kept = corners[torch.from_numpy(np.isfinite(distance))]
        offsets = torch.cartesian_prod(torch.arange(block), torch.arange(block))
        index = (kept[:, None, :] + offsets).reshape(-1, 2)
        return low + step * index.double(), (index % 2 == 0).all(dim=1)

    def _relevant(self, points: Tensor) -> Tensor:
        """Return the indices of the components that matter somewhere in the bounding box of these points."""
        low, high = points.amin(dim=0), points.amax(dim=0)
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        away = [(self._columns[axis] - middle[axis]).abs() for axis in (0, 1)]
        best = self._log_component(*((away[axis] - half[axis]).clamp_(min=0.0) for axis in (0, 1)))
        worst = self._log_component(*(away[axis] + half[axis] for axis in (0, 1)))
        at_most, at_least = best + self.log_weights, (worst + self.log_weights).amax()
        return (at_most >= at_least - _NEGLIGIBLE).nonzero()[:, 0]

    def _sum(self, x: Tensor, which: Tensor) -> Tensor:
        centres, log_weights = self.centres[which], self.log_weights[which]
        parts = x.split(max(1, _PAIRS // which.shape[0]))
        if self.side > 0.0:
            return torch.cat([self._sum_squares(part, centres, log_weights) for part in parts])
        return torch.cat([self._sum_gaussians(part, centres, log_weights) for part in parts])

    def _sum_gaussians(self, x: Tensor, centres: Tensor, log_weights: Tensor) -> Tensor:
        # |x - c|^2 is expanded so that the pairs come from one matrix product; about the middle of the c that matter,
        # for the digits that cancel
        middle = centres.mean(dim=0)
        x, centres = (x - middle) / self.std, (centres - middle) / self.std
        exponents = torch.addmm(log_weights - 0.5 * centres.square().sum(dim=1), x, centres.T)
        normalization = math.log(2.0 * math.pi * self.std**2)
        return torch.logsumexp(exponents, dim=1) - 0.5 * x.square().sum(dim=1) - normalization

    def _sum_squares(self, x: Tensor, centres: Tensor, log_weights: Tensor) -> Tensor:
        across, along = (self._log_blurred(x[:, None, axis] - centres[:, axis]) for axis in (0, 1))
        return torch.logsumexp(across + along + log_weights, dim=1)

    def _log_component(self, across: Tensor, along: Tensor) -> Tensor:
        """Return the log-density of a component at offsets (K,), (K,) from its centre; it falls with each |offset|."""
        if self.side > 0.0:
            return self._log_blurred(across) + self._log_blurred(along)
        scale = 0.5 / self.std**2
        return -scale * (across.square() + along.square()) - math.log(2.0 * math.pi * self.std**2)

    def _log_blurred(self, offset: Tensor) -> Tensor:
        """Return the log-density of one coordinate of a blurred square, elementwise: a difference of two Phi."""
        outward = offset.abs()
        near, far = (outward - 0.5 * self.side) / self.std, (outward + 0.5 * self.side) / self.std
        if bool((near < _UNDERFLOW).all()):
            # tails, not values of Phi near 1: the difference loses no digits far out
            root = math.sqrt(0.5)
            return torch.log(torch.erfc(root * near) - torch.erfc(root * far)) - math.log(2.0 * self.side)
        upper, lower = torch.special.log_ndtr(-near), torch.special.log_ndtr(-far)
        # at most this, as exp(z^2 / 2) Phi(-z) falls; and close to it where the two have no digits left
        step = torch.minimum(lower - upper, -outward * (self.side / self.std**2))
        value: Tensor = upper + torch.log(-torch.expm1(step)) - math.log(self.side)
        return value


class MixtureDataModule(PlanarDataModule):
    """Base of the targets in the plane that are such a mixture: in closed form, or by quadrature along a curve.

    Subclass requirements: ``plane_draw``; in ``__init__``, ``_mixture``, and what :class:`PlanarDataModule` requires.

    Args:
        name: Name of the source, as it appears in results.
        **kwargs: Arguments of :class:`SampledDataModule`.
    """

    _mixture: PlanarMixture

    def plane_log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of the mixture; along a curve that is quadrature."""
        return self._mixture.log_prob(x)

    def plane_entropy(self) -> Integral:
        """Integrate on a grid."""
        return self._mixture.entropy()
