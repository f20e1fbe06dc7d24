"""What is measured of a transport on held-out rows, batch by batch."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from lightning_lift.datamodules.batches import TransportBatch
from lightning_lift.metrics.row_moments import RowMoments
from lightning_lift.metrics.transport import l2_uvp, transport_cosine
from lightning_lift.metrics.two_sample import energy_distance
from lightning_lift.modules.transport_map import TransportMap

_KEPT, _PAIRS = 4096, 2000  # rows of each side for figures that need them at once, and where all pairs are looked at


class TransportFigures(nn.Module):
    """Means over all rows of the dual's terms and the map's cost; the first rows themselves for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = nn.ModuleDict({name: RowMoments() for name in ("source", "target", "unsolved", "cost")})
        self.reset()

    def reset(self) -> None:
        """Start anew: an interrupted evaluation leaves its own rows behind."""
        for metric in self.moments.values():
            metric.reset()  # type: ignore[operator]
        self._offset, self.is_bound = 0.0, False
        self._sides: tuple[list[Tensor], list[Tensor]] = ([], [])

    def _moments(self, name: str) -> RowMoments:
        metric = self.moments[name]
        assert isinstance(metric, RowMoments)
        return metric

    def add_dual(self, transport: TransportMap, batch: TransportBatch, dtype: torch.dtype) -> None:
        """Add the dual's terms of a batch.

        Args:
            transport: the map.
            batch: held-out rows of both sides; one of them may have none.
            dtype: precision of the terms.
        """
        assert batch.target is not None
        terms = transport.dual_terms(batch.source, batch.target, dtype)
        self._offset, self.is_bound = terms.offset, terms.is_bound
        if len(terms.source):
            self._moments("source").update(terms.source)
        if len(terms.target):
            # without a bound, what was not solved says nothing
            self._moments("target").update(terms.target if terms.is_bound else terms.target[terms.solved])
            self._moments("unsolved").update((~terms.solved).float())

    def add_map(self, transport: TransportMap, batch: TransportBatch) -> None:
        """Add what the map does with a batch.

        Args:
            transport: the map.
            batch: held-out rows of both sides; one of them may have none.
        """
        assert batch.target is not None
        if len(batch.source):
            distance = (transport.forward(batch.source).double() - batch.source.double()).square().sum(1)
            self._moments("cost").update(0.5 * distance)
        for kept, rows in zip(self._sides, (batch.source, batch.target), strict=True):
            kept.append(rows[: max(0, _KEPT - sum(map(len, kept)))])

    def lower_bound(self) -> tuple[Tensor, Tensor]:
        """The dual's value, in units of W2^2 / 2, and its standard error."""
        (of_x, error_x), (of_y, error_y) = self._moments("source").compute(), self._moments("target").compute()
        return of_x + of_y + self._offset, (error_x.square() + error_y.square()).sqrt()

    def unsolved(self) -> Tensor:
        """Share of the target rows whose conjugate was not solved."""
        return self._moments("unsolved").compute()[0]

    def compute(self, transport: TransportMap, data: Any, samples: bool) -> dict[str, Tensor | float]:
        """All figures by name.

        Args:
            transport: the map.
            data: the data module; it may have ``map(x)``, the optimal map, and ``w2_half``.
            samples: whether to solve the transport between samples by POT.
        """
        value, error = self.lower_bound()
        found: dict[str, Tensor | float] = {"unsolved": self.unsolved()}
        if self.is_bound:
            found |= {"w2_half_lower": value, "w2_half_lower_standard_error": error}
        found["transport_cost_half"] = self._moments("cost").compute()[0]
        x, y = (torch.cat(kept) for kept in self._sides)
        mapped = transport.forward(x)
        if min(len(x), len(y)) > 2:
            distance = energy_distance(mapped[:_PAIRS], y[:_PAIRS])
            found["energy_distance"] = distance.value
            found["energy_distance_standard_error"] = distance.standard_error
        if samples:
            ot: Any = importlib.import_module("ot")
            some = [rows[:_PAIRS].double().cpu().numpy() for rows in (x, y)]
            found["w2_half_upper"] = 0.5 * float(ot.emd2([], [], ot.dist(*some)))
        if hasattr(data, "map"):
            truth = data.map(x)
            found["l2_uvp"] = l2_uvp(mapped, truth)
            found["cosine"] = transport_cosine(x, mapped, truth)
            found["l2_uvp_inverse"] = l2_uvp(transport.inverse(truth, 1e-4).x, x)
        if getattr(data, "w2_half", None) is not None:
            found["w2_half_exact"] = data.w2_half
        return found
