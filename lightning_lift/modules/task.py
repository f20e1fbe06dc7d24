"""What every task shares: batches and their parts, steps on them, the data's units, freezing."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from lightning_lift.datamodules.batches import Batch, as_batch, inputs_of, num_rows
from lightning_lift.datamodules.units import Units
from lightning_lift.modules.fitting import FittedModule
from lightning_lift.modules.selection import BestWeights
from lightning_lift.modules.units import column_order, in_float64, note_rows, units_between, warn_of_moved_rows
from lightning_lift.networks.base import check_points

BatchT = TypeVar("BatchT", Tensor, Batch)


class TaskModule(FittedModule):
    """Base of every task on rows (N, D), alone or with parts beside them, with or without convex networks.

    Subclass requirements:
        - ``batch_fields``, where a batch has parts: their names, in the order in which a loader gives them;
        - ``batch_loss(batch)``: one scalar, the mean over the batch;
        - ``frozen()``: the model as a plain module;
        - what ``FittedModule`` asks for.
        A task on convex networks derives from ``ConvexModule``, one that models a density from ``DensityTask``.

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.
    """

    batch_fields: tuple[str, ...] = ("x",)
    """Parts of a batch, in a loader's order: of ``x``, ``context``, ``target``, ``weight``; rows alone by default."""

    prediction_columns: tuple[str, ...] = ("prediction",)
    """What the numbers that ``predict_step`` returns for a row are called in a file of predictions."""

    takes_mixed_columns: bool = False
    """Whether the task makes sense on whitened rows, whose columns are mixtures of the table's: a density does."""

    def __init__(
        self,
        dim: int,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__(dim, optimizer, lr_scheduler, learning_rate)
        self._has_units = False
        # in float64, on the host: a mean far above the spread is lost in float32, and not every device has float64
        self.location, self.scale = torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)
        self.field_units: dict[str, Units] = {}
        self.field_columns: dict[str, list[str]] = {}
        self.columns: list[str] | None = None
        self._rows: dict[str, Any] = {}
        self.support = torch.tensor([[-torch.inf], [torch.inf]]).expand(2, dim).clone()

    def configure_callbacks(self) -> list[L.Callback]:
        """Selection by validation, on a fixed training split."""
        present = any(isinstance(callback, BestWeights) for callback in getattr(self.trainer, "callbacks", []))
        return [] if present else [BestWeights()]

    # -- batches --------------------------------------------------------------------------------------------------

    def as_batch(self, batch: Any, predicting: bool = False) -> Any:
        """A batch as this task takes it: a tensor of rows, or a ``Batch`` where ``batch_fields`` names parts.

        Args:
            batch: what a loader gave: see :func:`lightning_lift.datamodules.batches.as_batch`.
            predicting: whether the target may be left out.

        Raises:
            ValueError: parts that are missing, unknown or of unequal lengths, or points that are not (N, D).
        """
        made = as_batch(batch, self.batch_fields, predicting)
        check_points(inputs_of(made), self.dim)
        return made

    def inputs(self, batch: Any) -> Tensor:
        """What the network is convex in, shape (N, D).

        Args:
            batch: as the task takes it.
        """
        return inputs_of(batch)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Bring a batch into the form that steps and callbacks read."""
        if self.batch_fields == ("x",) and not (isinstance(batch, list | tuple) and len(batch) == 1):
            return batch
        return self.as_batch(batch, predicting=self._trainer is not None and self.trainer.predicting)

    # -- steps ----------------------------------------------------------------------------------------------------

    def batch_loss(self, batch: Any) -> Tensor:
        """The task's loss on a batch: one scalar, the mean over its rows.

        Args:
            batch: data in training units: rows (N, D), or a ``Batch`` where ``batch_fields`` names parts.
        """
        raise NotImplementedError(f"{type(self).__name__} must define batch_loss(batch).")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of this batch."""
        batch = self.as_batch(batch)
        with self.judged():
            loss = self.batch_loss(batch)
        # Lightning's bookkeeping of one logged number costs a tenth of a small model's step: it is called where the
        # number is read, by the loggers and, every tenth step, by the progress bar.
        step, every = self.global_step, getattr(self.trainer, "log_every_n_steps", 0) or 10
        if step % 10 == 0 or (step + 1) % every == 0:
            self.log("train/loss", loss, prog_bar=True, batch_size=num_rows(batch), sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The loss under the weights used in evaluation."""
        self._log_loss("val/loss", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """The loss under the weights used in evaluation."""
        self._log_loss("test/loss", batch)

    def _log_loss(self, tag: str, batch: Any) -> None:
        batch = self.as_batch(batch)
        with self.judged():
            loss = self.batch_loss(self.own_units(batch))
        # a float: of processes with unequal numbers of rows Lightning would divide by the truncated mean number
        rows: Any = float(num_rows(batch))
        self.log(tag, loss, prog_bar=True, batch_size=rows, on_epoch=True, sync_dist=True)

    def on_train_start(self) -> None:
        """Refuse to resume on data of other columns or units than the checkpoint's; warn if its rows are others.

        Raises:
            ValueError: the data's columns, their order, or their location and scale are not those of the checkpoint.
        """
        super().on_train_start()
        data = self._attached_datamodule()
        if column_order(self.columns, data) is not None:
            raise ValueError(
                f"the checkpoint was fitted on the columns {self.columns} and {type(data).__name__} has them in "
                f"another order: resume with columns={self.columns}."
            )
        others = [self._other_field_units(name) for name in ("context", "target")]
        if self._other_units() is not None or any(units is not None for units in others):
            raise ValueError(
                f"the checkpoint was fitted in other units than {type(data).__name__} has now (location "
                f"{self.location.tolist()}, scale {self.scale.tolist()} of x): resume on the same training rows, or "
                "start anew."
            )
        warn_of_moved_rows(self._rows, data, "train")

    def on_validation_start(self) -> None:
        """Compare the validation rows with those of the checkpoint, outside of fit."""
        if self.trainer.state.fn != "fit":
            self._meet_data("val")

    def on_test_start(self) -> None:
        """Compare the test rows with those of the checkpoint."""
        self._meet_data("test")

    def on_predict_start(self) -> None:
        """Compare the columns with those of the checkpoint; its rows may be predicted, whatever they were."""
        self._meet_data("predict")

    def _meet_data(self, split: str) -> None:
        data = self._attached_datamodule()
        for name in ("x", "context"):  # refuses other columns
            column_order(self.columns if name == "x" else self.field_columns.get(name), data, name)
        warn_of_moved_rows(self._rows, data, split)

    # -- freezing ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Weights of evaluation inside, the present modes again afterwards."""
        modes = [(part, part.training) for part in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for part, training in modes:
                part.training = training

    def freeze(self) -> nn.Module:  # type: ignore[override]  # Lightning's freeze() returns None
        """The model as a plain module with constant weights; this module stays trainable.

        It can be exported by ``torch.export``.
        """
        with torch.no_grad(), self._evaluation_mode():
            return self.frozen()

    def frozen(self) -> nn.Module:
        """What ``freeze`` returns; called with the weights of evaluation."""
        raise NotImplementedError(f"{type(self).__name__} must define frozen().")

    # -- data and checkpoints ------------------------------------------------------------------------------------

    def _attached_datamodule(self) -> Any:
        return None if self._trainer is None else getattr(self._trainer, "datamodule", None)

    def setup(self, stage: str) -> None:
        """Refuse half-precision weights and take over the data's units.

        Raises:
            ValueError: a "true" half precision, or data of another dimension.
        """
        super().setup(stage)
        # it says that the module's hook is used, which is what is wanted
        warnings.filterwarnings("ignore", message="You have overridden `on_after_batch_transfer` in `LightningModule`")
        precision = str(self.trainer.precision)
        if "true" in precision and precision not in ("32-true", "64-true"):
            raise ValueError(
                f"precision={precision!r}: convex derivatives, Cholesky and log-partition need float32 weights; use "
                "'32-true', '64-true', '16-mixed' or 'bf16-mixed'."
            )
        data = self._attached_datamodule()
        if data is None:
            return
        found = getattr(data, "dim", self.dim)
        if found != self.dim:
            column_order(self.columns, data)  # says which, where names are known
            names = getattr(data, "columns", "")
            raise ValueError(
                f"the model has dim={self.dim} and {type(data).__name__} has {found} columns {names}; set dim to it, "
                "or choose the model's columns."
            )
        # An evaluation keeps the units that the weights were fitted in; ``own_units`` brings the rows into them.
        if stage == "fit" or not self._has_units:
            self.adopt_units(data)

    def adopt_units(self, data: Any) -> None:
        """Take over units and support of the data, its columns and marks of its rows, where it states them.

        Args:
            data: a data module; its ``location`` has shape (D,), its ``scale`` (D,) or (D, D), its ``support`` (2, D),
                its ``field_units`` are the units of ``context`` and ``target`` by name, its ``field_columns`` the
                names of their columns.

        Raises:
            ValueError: whitened rows, and a task that is no density (``takes_mixed_columns``).
        """
        if getattr(getattr(data, "scale", None), "ndim", 1) == 2 and not self.takes_mixed_columns:
            raise ValueError(
                f"{type(data).__name__} whitens its rows, so each column is a mixture of the table's, and "
                f"{type(self).__name__} is no density of them: set the data's standardize to 'columns' (or "
                f"{type(self).__name__}.takes_mixed_columns = True, if mixtures are what it wants)."
            )
        for name, dtype in (("location", torch.float64), ("scale", torch.float64), ("support", torch.float32)):
            tensor = getattr(data, name, None)
            if tensor is not None:
                setattr(self, name, torch.as_tensor(tensor).detach().cpu().to(dtype, copy=True))
        stated: dict[str, Units] = getattr(data, "field_units", None) or {}
        self.field_units = {name: in_float64(units) for name, units in stated.items()}
        columns = getattr(data, "columns", None)
        self.columns = None if columns is None else [str(name) for name in columns]
        named: dict[str, list[str]] = getattr(data, "field_columns", None) or {}
        self.field_columns = {field: [str(name) for name in names] for field, names in named.items()}
        self._rows = note_rows(data)
        self._has_units = True

    def own_units(self, batch: BatchT) -> BatchT:
        """A batch of the attached data module, in the units and the order of columns that this module was fitted in.

        They differ when a checkpoint is evaluated on another table, or on another split of the same one, whose own
        training rows have other means and deviations.

        Args:
            batch: in the data module's units.

        Returns:
            A batch of the same shapes; the batch itself where the units agree.
        """
        other = self._other_units()
        if isinstance(batch, Tensor):
            return batch if other is None else other.to(batch).invert(batch)
        parts = {} if other is None else {"x": other.to(batch.x).invert(batch.x)}
        for name, part in (("context", batch.context), ("target", batch.target)):
            moved = None if part is None else self._other_field_units(name)
            if part is not None and moved is not None:
                parts[name] = moved.to(part).invert(part)
        return batch._replace(**parts)

    def _other_field_units(self, name: str) -> Units | None:
        """What brings context or target of the attached data into our units and columns; None where they agree."""
        data = self._attached_datamodule()
        order = column_order(self.field_columns.get(name), data, name)
        if not hasattr(data, "field_units"):
            return None
        return units_between(self.field_units.get(name), data.field_units.get(name), order)

    def _other_units(self) -> Units | None:
        """What brings rows of the attached data into our units and columns; None where all is as in fit."""
        data = self._attached_datamodule()
        location, scale = getattr(data, "location", None), getattr(data, "scale", None)
        if location is None or scale is None:
            return None
        order = column_order(self.columns, data)
        theirs, ours = Units(location.detach().cpu(), scale.detach().cpu()), Units(self.location, self.scale)
        if order is not None:
            theirs = theirs.reordered(order)
        elif all(torch.equal(one.to(two), two) for one, two in zip(theirs, ours, strict=True)):
            return None  # in our precision: checkpoints of before kept float32
        return self.units.of(theirs.to(self.units.location))

    @property
    def units(self) -> Units:
        """The training units that the weights were fitted in, float64 on the CPU."""
        return Units(self.location.double(), self.scale.double())

    @property
    def log_scale(self) -> float:
        """log |det scale|: log-density in original units is that in training units minus this."""
        return float(self.units.log_det)

    def get_extra_state(self) -> dict[str, Any]:
        """Units, columns and rows of the data, for checkpoints (not buffers: weight averaging would blend them)."""
        return {
            "location": self.location,
            "scale": self.scale,
            "support": self.support,
            "has_units": self._has_units,
            "columns": self.columns,
            "field_units": {name: tuple(units) for name, units in self.field_units.items()},
            "field_columns": self.field_columns,
            "rows": self._rows,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` gave."""
        self.location, self.scale, self.support = state["location"], state["scale"], state["support"]
        self._has_units = state["has_units"]
        # checkpoints of before have none of these
        self.columns, self._rows = state.get("columns"), state.get("rows", {})
        self.field_units = {name: Units(*units) for name, units in state.get("field_units", {}).items()}
        self.field_columns = state.get("field_columns", {})
