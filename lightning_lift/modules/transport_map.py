"""What a transport has fitted: the map, its inverse and the dual's terms in original units, and its frozen form."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_lift.datamodules.units import Units
from lightning_lift.flows.inverse import InverseResult, default_tolerance, invert
from lightning_lift.modules.frozen import FrozenEnergy
from lightning_lift.potential import Potential


class DualTerms(NamedTuple):
    """Terms of a lower bound of W2^2 / 2, whose two means and offset are to be added.

    Attributes:
        source: |x'|^2 / 2 - f(x) for each row of P, shape (N,), x' the row less the mean that the fit took.
        target: |y'|^2 / 2 - f*(y) for each row of Q, with an upper bound in the place of f*, shape (M,).
        offset: half the squared distance between those means.
        solved: where the conjugate's point was found, shape (M,); a bound holds where it was not, too.
        is_bound: whether the value is a lower bound in the mean: f is known to be strongly convex.
    """

    source: Tensor
    target: Tensor
    offset: float
    solved: Tensor
    is_bound: bool


def training_rows(rows: Tensor, own: Units, other: Units) -> Tensor:
    """Rows of one side in training units: by the other side's matrix, since S_P^-1 = S_Q^T / s^2.

    Args:
        rows: in original units, shape (N, D).
        own: units of this side, as ``balanced_units`` gives them.
        other: units of the other side.

    Returns:
        Shape (N, D), float64 where the device has it: a mean far above the spread is lost in float32.
    """
    wide = _wide(rows)
    here, there = own.to(wide), other.to(wide)
    return (wide - here.location) @ (there.scale / _factor(here, there))


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.device.type == "mps" else rows.double()


def _factor(source: Units, target: Units) -> Tensor:
    return (source.scale * target.scale).sum() / len(source.scale)


class TransportMap(NamedTuple):
    """The gradient of a convex function in original units.

    With training units u of x and v of y, f(x) = s^2 h(u) + <m_Q, x - m_P>, where S_P^T S_Q = s^2 I.

    Attributes:
        potential: h, in training units.
        source: units of P: x = m_P + S_P u.
        target: units of Q: y = m_Q + S_Q v.
    """

    potential: Potential
    source: Units
    target: Units

    def forward(self, x: Tensor) -> Tensor:
        """T(x) = grad f(x), shape (N, D)."""
        u = self._training(x, self.source, self.target)
        return self._original(self.target, self.potential.gradient(u)).to(x)

    def inverse(self, y: Tensor, tolerance: float | None = None) -> InverseResult:
        """The points with T(x) = y, shape (N, D) to (N, D), with what is known of each.

        Args:
            y: shape (N, D).
            tolerance: of the residual in training units, relative to 1 + |v|; see ``flows.inverse.invert``.

        Returns:
            ``converged`` is judged in training units; ``residual`` is |T(x) - y| in original ones.
        """
        v = self._training(y, self.target, self.source)
        found = invert(self.potential, v, tolerance, start=torch.where(torch.isfinite(v), v, 0.0))
        x = self._original(self.source, found.x).to(y)
        return found._replace(x=x, residual=(self.forward(x) - y).norm(dim=1))

    def interpolate(self, x: Tensor, t: float) -> Tensor:
        """(1 - t) x + t T(x), where the mass that began at x (N, D) is after a fraction t of the way."""
        return torch.lerp(x, self.forward(x), t)

    @torch.no_grad()
    def dual_terms(self, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float64) -> DualTerms:
        """What any convex f says of W2^2 / 2, by weak duality, on rows of P and Q: an estimate of a lower bound.

        E |x|^2 / 2 + E |y|^2 / 2 - E f(x) - E f*(y) <= W2^2 / 2 (Villani, Topics in Optimal Transportation, 2003,
        theorem 2.9). With x^ near the conjugate's point, f*(y) <= <x^, y> - f(x^) + |grad f(x^) - y|^2 / (2 k), where
        k is the strong convexity: so an inverse that is not exact makes the bound lower and never wrong.

        Args:
            x: rows of P, shape (N, D), which the fit has not seen.
            y: rows of Q, shape (M, D), likewise.
            dtype: precision of the terms.

        Returns:
            With k = 0 the last term cannot be had: no bound then.
        """
        k = self.potential.network.strong_convexity
        h = self.potential.to(dtype)
        own, other = self.source, self.target
        dtype = torch.float32 if x.device.type == "mps" else dtype
        centred_x, centred_y = (_wide(rows) - units.location.to(_wide(rows)) for rows, units in ((x, own), (y, other)))
        u, v = self._training(x, own, other).to(dtype), self._training(y, other, own).to(dtype)
        tolerance = default_tolerance(dtype) if dtype == torch.float64 else 1e-4
        found = invert(h, v, tolerance, start=v)
        value, slope = h.value_gradient(found.x)
        conjugate = (found.x * v).sum(1) - value
        if k > 0.0:
            conjugate = conjugate + (slope - v).square().sum(1) / (2.0 * k)
        shift = (self.source.location - self.target.location).to(centred_x)
        factor = self.factor
        of_x = 0.5 * centred_x.square().sum(1) - factor * h.value(u) + centred_x @ shift
        of_y = 0.5 * centred_y.square().sum(1) - factor * conjugate - centred_y @ shift
        return DualTerms(of_x, of_y, 0.5 * float(shift.square().sum()), found.converged, k > 0.0)

    @property
    def factor(self) -> float:
        """s^2: products of original rows over products of training rows."""
        return float(_factor(self.source, self.target))

    def _training(self, rows: Tensor, own: Units, other: Units) -> Tensor:
        """In training units and the weights' precision."""
        return training_rows(rows, own, other).to(next(iter(self.potential.weights.values())))

    @staticmethod
    def _original(units: Units, training: Tensor) -> Tensor:
        wide = _wide(training)
        return units.to(wide).invert(wide)


class FrozenTransport(nn.Module):
    """A transport map with constant weights, in original units.

    Args:
        transport: copied; nothing is shared with the model it came from.
    """

    def __init__(self, transport: TransportMap) -> None:
        super().__init__()
        self.energy = FrozenEnergy(transport.potential)
        for name, units in (("source", transport.source), ("target", transport.target)):
            for kind, part in units._asdict().items():
                self.register_buffer(f"{name}_{kind}", part.clone())
        self.eval()

    def transport_map(self) -> TransportMap:
        """The map, its inverse and the path between them."""
        source, target = (
            Units(*(self.get_buffer(f"{name}_{kind}") for kind in Units._fields)) for name in ("source", "target")
        )
        return TransportMap(self.energy.potential(), source, target)

    def forward(self, x: Tensor) -> Tensor:
        """T(x): rows of P, shape (N, D), to rows of Q."""
        return self.transport_map().forward(x)

    def inverse(self, y: Tensor) -> InverseResult:
        """The points with T(x) = y, shape (N, D); see ``TransportMap.inverse``."""
        return self.transport_map().inverse(y)
