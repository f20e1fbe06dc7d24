"""What every data module of rows must hold. It asks for the interface only: data modules need not know this package."""

import math
from typing import Any

import torch
from torch import Tensor

from lightning_lift.datamodules.batches import Batch, concatenated, num_rows, parts_of
from lightning_lift.partition.grids import grid_points, log_integral


class DataModuleContract:
    """Derive, and define ``make()``, which gives a data module of small splits.

    Attributes:
        integral_points: grid points along each dimension for the integral of a known density (D <= 2).
        integral_tolerance: of that integral over the window, which holds all but this much of the mass.
    """

    integral_points: int = 2001
    integral_tolerance: float = 1e-3

    def make(self) -> Any:
        """A fresh data module; two calls give equal settings."""
        raise NotImplementedError

    def _ready(self) -> Any:
        data = self.make()
        for stage in ("fit", "test"):
            data.setup(stage)
        return data

    @staticmethod
    def _rows(loader: Any) -> Tensor:
        """All the numbers of each row, (N, ...), whatever parts it has."""
        parts = parts_of(concatenated(loader))
        return torch.cat([part.reshape(len(part), -1) for part in parts.values()], dim=1)

    def test_dimension_is_known_before_setup(self) -> None:
        data = self.make()
        assert isinstance(data.dim, int)
        assert data.dim >= 1

    def test_batches_are_finite_float32_rows(self) -> None:
        data = self._ready()
        for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
            batch = next(iter(loader))
            assert isinstance(batch, Tensor | Batch)
            shapes = getattr(data, "shapes", {"x": (data.dim,)})
            assert {name: tuple(part.shape[1:]) for name, part in parts_of(batch).items()} == shapes
            for part in parts_of(batch).values():
                assert len(part) == num_rows(batch)
                assert part.dtype == torch.float32
                assert torch.isfinite(part).all()

    def test_equal_settings_give_equal_rows(self) -> None:
        one, two = self._ready(), self._ready()
        for name in ("train_dataloader", "val_dataloader", "test_dataloader", "calibration_dataloader"):
            assert torch.equal(self._rows(getattr(one, name)()), self._rows(getattr(two, name)())), name

    def test_setup_is_idempotent(self) -> None:
        data = self._ready()
        before = self._rows(data.test_dataloader())
        data.setup("fit")
        data.setup("test")
        assert torch.equal(self._rows(data.test_dataloader()), before)

    def test_splits_are_disjoint(self) -> None:
        data = self._ready()
        splits = [self._rows(getattr(data, f"{name}_dataloader")()) for name in ("train", "val", "test")]
        repeats = [len(rows) - len(rows.unique(dim=0)) for rows in splits]
        together = torch.cat(splits)
        # Rows that a table itself repeats, or that float32 cannot tell apart, may recur; a split must not be another's.
        assert len(together) - len(together.unique(dim=0)) <= sum(repeats) + 0.02 * len(together)

    def test_loading_leaves_the_global_generator_alone(self) -> None:
        data = self._ready()
        state = torch.get_rng_state()
        for name in ("train", "val", "test", "calibration"):
            self._rows(getattr(data, f"{name}_dataloader")())
        assert torch.equal(torch.get_rng_state(), state)

    def test_units(self) -> None:
        data = self._ready()
        assert data.location.shape == (data.dim,)
        assert math.isclose(data.log_scale, float(data.units.log_det), rel_tol=1e-5, abs_tol=1e-6)
        parts = parts_of(data.split("test"))
        for name, units in {"x": data.units, **getattr(data, "field_units", {})}.items():
            rows = parts[name][:9].double()
            torch.testing.assert_close(units.apply(units.invert(rows)), rows, rtol=1e-6, atol=1e-6)
        if hasattr(data, "window"):
            assert data.support.shape == data.window.shape == (2, data.dim)
            assert torch.isfinite(data.window).all()

    def test_stated_entropy_against_monte_carlo(self) -> None:
        data = self._ready()
        if not getattr(data, "has_log_prob", False) or data.entropy is None:
            return
        surprise = -data.log_prob(self._rows(data.test_dataloader())).double()
        standard_error = float(surprise.std() / math.sqrt(len(surprise)))
        assert abs(float(surprise.mean()) - data.entropy) <= 4.0 * standard_error + data.entropy_error

    def test_log_density_integrates_to_one(self) -> None:
        data = self._ready()
        if not getattr(data, "has_log_prob", False) or data.dim > 2:
            return
        window = data.window.double()
        points = grid_points(window, self.integral_points)
        total = float(log_integral(data.log_prob(points), window, self.integral_points).exp())
        assert abs(total - 1.0) <= self.integral_tolerance
