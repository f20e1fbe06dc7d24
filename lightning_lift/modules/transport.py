"""Optimal transport for the quadratic cost: the gradient of a convex function that takes P to Q."""

import functools
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from lightning_lift.datamodules.batches import TransportBatch, as_transport_batch
from lightning_lift.datamodules.gaussian_maps import balanced_units
from lightning_lift.flows.inverse import InverseResult
from lightning_lift.flows.transform import all_points
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.conjugates import SOLVERS, ConjugateName
from lightning_lift.modules.defaults import DefaultAdam, DefaultParameterization, WarmupCosine
from lightning_lift.modules.factories import unset_options
from lightning_lift.modules.transport_figures import TransportFigures
from lightning_lift.modules.transport_map import FrozenTransport, TransportMap, training_rows
from lightning_lift.modules.units import note_rows
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.networks.base import check_points
from lightning_lift.parameterizations import Parameterization
from lightning_lift.potential import Potential

_START = {"output_scale_start": 0.01}  # nearly the identity in training units: the Gaussian map
_MOMENT_ROWS = 200_000


class BrierMap(ConvexModule):
    """The optimal map from P to Q for the cost |x - y|^2 / 2, by the dual problem (Brenier, 1991).

    min over convex f of E_P f(x) + E_Q f*(y); T = grad f takes P to Q and grad f* takes it back. The gradient of the
    second term is that at the conjugate's point x^(y), held fixed (envelope theorem); rows of which it was not found
    are left out of a step, and counted. A batch is (source, target): rows of P and of Q, in their own units, unpaired
    and not necessarily as many.

    Training takes units in which the two samples have the same covariance, without changing what is optimal
    (``balanced_units``); the network starts near the identity in them, which is the optimal map between Gaussians of
    these moments. They are taken from the training rows at the first fit.

    Logged: ``train/loss``, the dual objective in training units, and ``train/unsolved``, the share of rows left out;
    ``val/loss`` and ``test/loss``, minus the lower bound in these units. In test, in units of W2^2 / 2:
    ``test/w2_half_lower``, a lower bound in the mean (``TransportMap.dual_terms``), with ``..._standard_error``;
    ``test/w2_half_upper`` between samples, where POT is installed, an upper bound in the mean;
    ``test/transport_cost_half``, E |T(x) - x|^2 / 2, half the squared distance of P to T#P and no bound. Also
    ``test/energy_distance`` of T(P) to Q, ``test/unsolved``, and where the data module knows the map ``test/l2_uvp``,
    ``test/l2_uvp_inverse`` (percent) and ``test/cosine`` of the Wasserstein-2 benchmark.

    Args:
        dim: dimension D of both; linked from the data module on the command line.
        conjugate: how x^(y) is found in training. ``newton``: solved for each row. ``amortized``: predicted by a second
            network and finished by L-BFGS. ``minimax``, ``cycle``: predicted by a second network, which climbs, or is
            held by a penalty. Evaluation and the inverse map are by Newton's method for all.
        tolerance: rows whose |grad f(x^) - y| is above it times 1 + |y| are left out, in training units.
        inner_steps: for ``minimax``: steps of the second network between two of the first.
        direction: what ``predict`` does with rows: ``forward`` maps rows of P, ``inverse`` rows of Q.
        network: factory of the convex network, called with ``dim`` and, where it has these and they are not set, a
            small ``output_scale_start``.
        parameterization: as for ``ConvexModule``; it holds a second network too.
        optimizer: as for ``ConvexModule``.
        lr_scheduler: as for ``ConvexModule``.
        learning_rate: as for ``ConvexModule``.

    Raises:
        ValueError: an unknown conjugate or direction, a tolerance or number of steps that is not positive, or a network
            that has a context or is not twice differentiable.
    """

    batch_fields: tuple[str, ...] = ("source", "target")
    takes_mixed_columns = True
    headlines: tuple[str, ...] = ("test/l2_uvp", "test/loss")

    def __init__(
        self,
        dim: int,
        conjugate: ConjugateName = "newton",
        tolerance: float = 0.02,
        inner_steps: int = 10,
        direction: Literal["forward", "inverse"] = "forward",
        network: Callable[[int], ConvexNetwork] = ICNN,
        parameterization: Callable[[], Parameterization] = DefaultParameterization,
        optimizer: OptimizerCallable = DefaultAdam,
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        learning_rate: float | None = None,
    ) -> None:
        if conjugate not in SOLVERS:
            raise ValueError(f"conjugate={conjugate!r} is not known; choose {', '.join(get_args(ConjugateName))}.")
        if direction not in ("forward", "inverse"):
            raise ValueError(f"direction={direction!r} is not known; choose forward or inverse.")
        if not tolerance > 0.0 or inner_steps < 1:
            raise ValueError(f"tolerance={tolerance} and inner_steps={inner_steps}: must be positive.")
        self._solver = SOLVERS[conjugate](tolerance)
        super().__init__(dim, network, parameterization, optimizer, lr_scheduler, learning_rate)
        self.conjugate, self.inner_steps, self.direction = conjugate, inner_steps, direction
        self._figures = TransportFigures()
        self._unsolved = 0.0

    def build(self, network: Callable[[int], ConvexNetwork]) -> nn.Module:
        """Make f, near the identity, and where the conjugate's points are predicted the network that does it.

        Args:
            network: the factory given to the constructor.
        """
        made = functools.partial(network, **unset_options(network, _START))
        networks = [made(self.dim) for _ in range(1 + self._solver.has_network)]
        if networks[0].context_shape is not None or not networks[0].twice_differentiable:
            raise ValueError(
                f"{type(networks[0]).__name__} cannot be the potential of a transport here: take one without a context "
                "whose activation is 'softplus' or 'gaussian_softplus', since a relu's gradient has no inverse."
            )
        return nn.ModuleList(networks) if self._solver.has_network else networks[0]

    # -- batches and units --------------------------------------------------------------------------------------

    def as_batch(self, batch: Any, predicting: bool = False) -> TransportBatch:
        """A batch as this task takes it.

        Args:
            batch: what a loader gave: see ``datamodules.batches.as_transport_batch``.
            predicting: whether rows of one side will do.

        Raises:
            ValueError: a part is missing or unknown, or is no table of D columns.
        """
        made = as_transport_batch(batch, predicting)
        check_points(made.source, self.dim)
        return made

    def own_units(self, batch: Any) -> Any:
        """The batch itself: loaders serve original units, which is what maps and costs are about."""
        return batch

    def summary_rows(self, batch: TransportBatch) -> Tensor:
        """What a lift conditions on in training: rows of P, in training units, shape (N, D)."""
        return training_rows(batch.source, self.units, self.field_units["target"]).to(batch.source)

    def adopt_units(self, data: Any) -> None:
        """Take over the data's columns; its rows must be in original units.

        Args:
            data: a data module.

        Raises:
            ValueError: it serves standardised rows.
        """
        location, scale = getattr(data, "location", None), getattr(data, "scale", None)
        if location is not None and (bool((location != 0).any()) or scale is None or bool((scale != 1).any())):
            raise ValueError(
                f"{type(data).__name__} serves rows in units of its own, and a transport of them is not the one of the "
                "rows: give it as a side of a TransportDataModule."
            )
        columns = getattr(data, "columns", None)
        self.columns = None if columns is None else [str(name) for name in columns]
        self._rows = note_rows(data)

    def on_fit_start(self) -> None:
        """Take the units from the training rows, at the first fit.

        Raises:
            RuntimeError: there are no rows to be had: fit with a data module, or with a ``DataLoader`` in order or
                shuffled.
        """
        if not self._has_units:
            batches = self.calibration_dataloader()
            if batches is None:
                raise RuntimeError(
                    "a transport takes its units from the training rows, and there is no pass over them: fit with a "
                    "TransportDataModule, or a DataLoader of pairs of rows in order or shuffled, or call "
                    "module.balance(source, target) before."
                )
            self.balance(*_moment_rows(self.as_batch(batch) for batch in batches))
        self._solver.forget()
        super().on_fit_start()

    def balance(self, source: Tensor, target: Tensor) -> None:
        """Take units in which two samples have the same covariance; see ``datamodules.gaussian_maps.balanced_units``.

        Args:
            source: rows of P, shape (N, D).
            target: rows of Q, shape (M, D).

        Raises:
            ValueError: rows that are not finite, fewer than two, or all rows of one side are equal.
        """
        for name, rows in (("source", source), ("target", target)):
            bad = int((~torch.isfinite(rows)).any(1).sum())
            if bad:
                raise ValueError(f"{bad} of {len(rows)} rows of {name} are not finite: take them out.")
        units, self.field_units["target"] = balanced_units(source, target)
        self.location, self.scale = units
        self._has_units = True

    # -- the loss -------------------------------------------------------------------------------------------------

    def batch_loss(self, batch: Any, latent: Tensor | None = None) -> Tensor:
        """The dual objective E f(u) + E [<u^, v> - f(u^)] in training units, and what trains a second network.

        Args:
            batch: rows of both sides.
            latent: shape (d,); replaces the constrained latent (for diagnostics).
        """
        batch = self.as_batch(batch)
        with torch.autocast(device_type=batch.source.device.type, enabled=False):
            return self._dual_loss(self.potentials(batch, latent), batch)

    def _dual_loss(self, potentials: tuple[Potential, ...], batch: TransportBatch) -> Tensor:
        assert batch.target is not None
        sides = self.units, self.field_units["target"]
        u = training_rows(batch.source, *sides).to(batch.source)
        v = training_rows(batch.target, *sides[::-1]).to(batch.target)
        found = self._solver.solve(potentials, v, batch.positions if self.training else None)
        if self.conjugate == "minimax" and self.training and self.global_step % (self.inner_steps + 1):
            assert found.loss is not None
            return found.loss
        points, some = found.points[found.solved], v[found.solved]
        values = potentials[0].value(torch.cat([u, points]))
        loss = values[: len(u)].mean() + ((points * some).sum(1) - values[len(u) :]).sum() / max(len(some), 1)
        if not len(some):
            loss = 0.0 * values.sum()  # f alone would fall for ever
        self._unsolved = 1.0 - len(some) / max(len(v), 1)
        return loss if found.loss is None else loss + found.loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of this batch; how many of its rows were left out is logged."""
        loss = super().training_step(batch, batch_idx)
        if self.global_step % 10 == 0:
            self.log("train/unsolved", self._unsolved, prog_bar=True, batch_size=len(self.as_batch(batch).source))
        return loss

    # -- what a user calls --------------------------------------------------------------------------------------

    def transport_map(self, potential: Potential | None = None) -> TransportMap:
        """The map in original units.

        Args:
            potential: f; None for the one under the weights of the present mode.

        Raises:
            RuntimeError: nothing has been fitted, so no units are known.
        """
        if not self._has_units:
            raise RuntimeError("this transport has not been fitted: fit it, or call balance(source, target).")
        return TransportMap(
            self.potential() if potential is None else potential, self.units, self.field_units["target"]
        )

    @torch.no_grad()
    def transport(self, x: Tensor) -> Tensor:
        """T(x), rows of P to rows of Q in original units: shape (N, D) to (N, D)."""
        with self._evaluation_mode():
            return self.transport_map().forward(x)

    @torch.no_grad()
    def inverse_map(self, y: Tensor) -> InverseResult:
        """The points with T(x) = y in original units, with flags; see ``TransportMap.inverse``."""
        with self._evaluation_mode():
            return self.transport_map().inverse(y)

    def inverse_transport(self, y: Tensor) -> Tensor:
        """grad f*(y), rows of Q to rows of P in original units: shape (N, D) to (N, D).

        Raises:
            RuntimeError: some were not found; ``inverse_map`` gives those that were, with flags.
        """
        return all_points(self.inverse_map(y))

    @torch.no_grad()
    def interpolate(self, x: Tensor, t: float) -> Tensor:
        """Where the mass that began at x is after a fraction t of the way, (1 - t) x + t T(x): shape (N, D)."""
        with self._evaluation_mode():
            return self.transport_map().interpolate(x, t)

    @property
    def prediction_columns(self) -> tuple[str, ...]:  # type: ignore[override]  # a class attribute in the base
        """The mapped columns, and whether they were found (1 or 0)."""
        names = self.columns or [f"x{i + 1}" for i in range(self.dim)]
        return (*(f"mapped_{name}" for name in names), "converged")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mapped row in original units, and 1 where it was found: shape (N, D + 1)."""
        rows = self.as_batch(batch, predicting=True).source
        if self.direction == "forward":
            mapped = self.transport_map().forward(rows)
            return torch.cat([mapped, torch.isfinite(mapped).all(1, keepdim=True).to(mapped)], dim=1)
        found = self.transport_map().inverse(rows)
        return torch.cat([found.x, found.converged.unsqueeze(1).to(found.x)], dim=1)

    def frozen(self) -> FrozenTransport:
        """What ``freeze`` returns: both maps in original units, as a plain module."""
        return FrozenTransport(self.transport_map())

    # -- evaluation -----------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Start an evaluation."""
        super().on_validation_epoch_start()
        self._figures.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Accumulate the dual objective on held-out rows."""
        batch = self.as_batch(batch)
        self._figures.add_dual(self.transport_map(), batch, torch.float32)

    def on_validation_epoch_end(self) -> None:
        """Log ``val/loss``."""
        self._log_dual("val/loss")

    def _log_dual(self, tag: str) -> None:
        value = -self._figures.lower_bound()[0] / self.transport_map().factor
        self.log(tag, value, prog_bar=True, sync_dist=True)

    def on_test_epoch_start(self) -> None:
        """Start an evaluation."""
        self._figures.reset()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Accumulate the dual, the map's cost and where the rows land."""
        batch, transport = self.as_batch(batch), self.transport_map()
        self._figures.add_dual(transport, batch, torch.float64)
        self._figures.add_map(transport, batch)

    def on_test_epoch_end(self) -> None:
        """Log what was accumulated, and where the data module knows the map the distance to it."""
        self._log_dual("test/loss")
        data = self._attached_datamodule()
        figures = self._figures.compute(self.transport_map(), data, samples=find_spec("ot") is not None)
        for name, value in figures.items():
            self.log(f"test/{name}", value, sync_dist=True)


def _moment_rows(batches: Iterable[TransportBatch]) -> tuple[Tensor, Tensor]:
    """The first rows of both sides, enough for their moments."""
    sides: tuple[list[Tensor], list[Tensor]] = ([], [])
    for batch in batches:
        assert batch.target is not None
        for kept, rows in zip(sides, (batch.source, batch.target), strict=True):
            if sum(map(len, kept)) < _MOMENT_ROWS:
                kept.append(rows)
        if all(sum(map(len, kept)) >= _MOMENT_ROWS for kept in sides):
            break
    return torch.cat(sides[0]), torch.cat(sides[1])
