"""The contract of a task on convex networks: a LightningModule in which the parameterization is a plug."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import lightning as L
import torch
from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from lightning_lift.modules.checkpoints import check_checkpoint, refresh_summaries, stamp_checkpoint
from lightning_lift.modules.factories import factory, plain
from lightning_lift.modules.frozen import FrozenEnergy
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.networks.base import check_points
from lightning_lift.parameterizations import Lift, Parameterization
from lightning_lift.potential import Potential


class ConvexModule(L.LightningModule):
    """Base of every task. A task is one method, written against potentials alone.

    Subclass requirements:
        - ``loss(potential, batch)``: one scalar, the mean over the batch;
        - constructor arguments plain or factories, all of them passed on or stored by name;
        - a task of several networks overrides ``build`` and reads ``potentials(batch)``.
        Training, validation, projection after each real optimizer step, calibration of the lift, checkpoints and
        hyperparameters are done here.

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        network: factory of the convex network, called with ``dim``.
        parameterization: factory of the way in which the weights are kept nonnegative: ``lift``, ``direct``, ``pgd``.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.

    Raises:
        ValueError: a dimension below 1 or a learning rate that is not positive.
        TypeError: a factory that is not one, or that a checkpoint could not store.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[[int], ConvexNetwork] = ICNN,
        parameterization: Callable[[], Parameterization] = Lift,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim={dim!r}: the data need at least one column.")
        if learning_rate is not None and not learning_rate > 0.0:
            raise ValueError(f"learning_rate={learning_rate}: must be positive, or None for the optimizer's own.")
        self._save_plain_hyperparameters()
        self.dim = dim
        self.learning_rate = learning_rate
        self._optimizer = factory("optimizer", optimizer)
        self._lr_scheduler = None if lr_scheduler is None else factory("lr_scheduler", lr_scheduler)
        self._projection_hooks: list[RemovableHandle] = []
        self._has_units = False
        self.location, self.scale = torch.zeros(dim), torch.ones(dim)
        self.support = torch.tensor([[-torch.inf], [torch.inf]]).expand(2, dim).clone()
        # The network draws its start before the parameterization draws anything: one seed, one start for all.
        self.network = self.build(factory("network", network))
        self._prefixes = [name for name, m in self.network.named_modules() if isinstance(m, ConvexNetwork)]
        made = factory("parameterization", parameterization)()
        if not isinstance(made, Parameterization):
            raise TypeError(f"parameterization made a {type(made).__name__}, not a Parameterization.")
        self.parameterization = made.bind(self.network, self.dim)

    def _save_plain_hyperparameters(self) -> None:
        # The frames of the constructors that are running, outermost class first: Lightning reads their arguments.
        frame = inspect.currentframe()
        assert frame is not None
        self.save_hyperparameters(frame=frame.f_back)
        stored = {name: plain(name, value) for name, value in self.hparams.items()}
        # The command line's own instantiator would hand this constructor objects that cannot be stored again; the plain
        # forms are what it reads itself.
        stored.pop("_instantiator", None)
        if "_class_path" not in stored and inspect.getfullargspec(type(self).__init__).varkw is None:
            stored["_class_path"] = f"{type(self).__module__}.{type(self).__qualname__}"  # lets the CLI load it
        self.hparams.clear()
        self.hparams.update(stored)
        self._hparams_initial = AttributeDict(stored)

    def build(self, network: Callable[[int], ConvexNetwork]) -> nn.Module:
        """Makes the task's network, or a module that contains all of its convex networks.

        Args:
            network: the factory given to the constructor.
        """
        return network(self.dim)

    # -- what a task is written against -------------------------------------------------------------------------

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        """The task: one scalar, the mean over the batch.

        Args:
            potential: the convex function under the present weights.
            batch: data, shape (N, D).
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(potential, batch).")

    def potential(self, batch: Tensor | None = None, latent: Tensor | None = None) -> Potential:
        """The convex function under the present weights.

        Args:
            batch: data, shape (N, D); in training mode the lift conditions on it, in evaluation mode nothing does.
            latent: shape (d,); replaces the constrained latent (for diagnostics).
        """
        return self.potentials(batch, latent)[0]

    def potentials(self, batch: Tensor | None = None, latent: Tensor | None = None) -> tuple[Potential, ...]:
        """One potential for each convex network, in the order of ``named_modules``.

        Args:
            batch: data, shape (N, D).
            latent: shape (d,); replaces the constrained latent.
        """
        with torch.autocast(device_type=self.device.type, enabled=False):
            weights = self.parameterization.weights(batch, latent)
        potentials = []
        for prefix in self._prefixes:
            start = f"{prefix}." if prefix else ""
            network = cast(ConvexNetwork, self.network.get_submodule(prefix))
            own = {name[len(start) :]: tensor for name, tensor in weights.items() if name.startswith(start)}
            potentials.append(Potential(network, own))
        return tuple(potentials)

    # -- steps ----------------------------------------------------------------------------------------------------

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """The loss under weights conditioned on this batch."""
        check_points(batch, self.dim)
        loss = self.loss(self.potential(batch), batch)
        # Lightning's bookkeeping of one logged number costs a tenth of a small model's step: it is called where the
        # number is read, by the loggers and, every tenth step, by the progress bar.
        step, every = self.global_step, getattr(self.trainer, "log_every_n_steps", 0) or 10
        if step % 10 == 0 or (step + 1) % every == 0:
            self.log("train/loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """The loss under the weights used in evaluation."""
        self._log_loss("val/loss", batch)

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """The loss under the weights used in evaluation."""
        self._log_loss("test/loss", batch)

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """The potential's value at each row, shape (N,)."""
        return self.potential().value(self.own_units(batch))

    def _log_loss(self, tag: str, batch: Tensor) -> None:
        check_points(batch, self.dim)
        loss = self.loss(self.potential(), self.own_units(batch))
        self.log(tag, loss, prog_bar=True, batch_size=len(batch), on_epoch=True, sync_dist=True)

    # -- optimisation and projection --------------------------------------------------------------------------------

    def configure_optimizers(self) -> Any:
        """The optimizer over all parameters, and the scheduler, stepping once per optimizer step."""
        optimizer = self._optimizer(self.parameters())
        if self.learning_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate
        if self._lr_scheduler is None:
            return optimizer
        scheduler = self._lr_scheduler(optimizer)
        config: dict[str, Any] = {"scheduler": scheduler, "interval": "step"}
        if isinstance(scheduler, ReduceLROnPlateau):
            config |= {"interval": "epoch", "monitor": getattr(scheduler, "monitor", "val/loss")}
        return {"optimizer": optimizer, "lr_scheduler": config}

    def on_train_start(self) -> None:
        """Projects once, then after every real optimizer step."""
        self._remove_projection_hooks()
        if self._other_units() is not None:
            raise ValueError(
                f"the checkpoint was fitted in other units than {type(self._attached_datamodule()).__name__} has now "
                f"(location {self.location.tolist()}, scale {self.scale.tolist()}): resume on the same training rows, "
                "or start anew."
            )
        self.parameterization.project_()
        # A post-step hook of the optimizer: before any callback sees the weights (step checkpoints, averaging), once
        # per real step under accumulation, and for closures and manual optimisation as well.
        optimizers = self.optimizers(use_pl_optimizer=False)
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            hook = optimizer.register_step_post_hook(lambda *_: self.parameterization.project_())
            self._projection_hooks.append(hook)

    def on_train_end(self) -> None:
        """Leaves a module that can be evaluated: weight averaging has just changed the weights."""
        self._remove_projection_hooks()
        self.calibrate()

    def teardown(self, stage: str) -> None:
        """Removes the projection hooks."""
        self._remove_projection_hooks()

    def _remove_projection_hooks(self) -> None:
        for hook in self._projection_hooks:
            hook.remove()
        self._projection_hooks.clear()

    # -- calibration ------------------------------------------------------------------------------------------------

    def calibration_dataloader(self) -> Iterable[Tensor] | None:
        """Rows for the reference summary: the data module's, or None where there are none to be had.

        Override it to fit the lift on bare data loaders. It must not share a generator with the training loader.
        """
        source = getattr(self._attached_datamodule(), "calibration_dataloader", None)
        return None if source is None else cast(Iterable[Tensor], source())

    def calibrate(self) -> None:
        """Makes the lift's reference summary anew if the body's weights have changed since; otherwise a no-op.

        Raises:
            RuntimeError: it is stale and there are no calibration rows.
        """
        if not self.parameterization.is_stale:
            return
        batches = self.calibration_dataloader()
        if batches is None:
            raise RuntimeError(
                f"{type(self.parameterization).__name__} is evaluated on a reference summary of the training split, "
                "and there are no rows for it: fit with a data module that has calibration_dataloader(), override "
                "calibration_dataloader() of the module, or call module.parameterization.calibrate(batches)."
            )
        self.parameterization.calibrate(batches)

    def on_validation_epoch_start(self) -> None:
        """Calibrates during fit. Not in ``on_validation_start``: weight averaging swaps weights after that hook."""
        if self.trainer.state.fn == "fit":
            self.calibrate()

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Weights of evaluation inside, the present mode again afterwards."""
        mode = self.parameterization.training
        self.parameterization.eval()
        try:
            yield
        finally:
            self.parameterization.train(mode)

    def freeze(self) -> nn.Module:  # type: ignore[override]  # Lightning's freeze() returns None
        """The model as a plain module with constant weights and no lift inside; this module stays trainable.

        It can be exported by ``torch.export``.
        """
        with torch.no_grad(), self._evaluation_mode():
            return self.frozen()

    def frozen(self) -> nn.Module:
        """What ``freeze`` returns; called with the weights of evaluation."""
        return FrozenEnergy(self.potential())

    # -- data and checkpoints ------------------------------------------------------------------------------------

    def _attached_datamodule(self) -> Any:
        return None if self._trainer is None else getattr(self._trainer, "datamodule", None)

    def setup(self, stage: str) -> None:
        """Refuses half-precision weights and takes over the data's units.

        Raises:
            ValueError: a "true" half precision, or data of another dimension.
        """
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
            raise ValueError(
                f"the model has dim={self.dim} and {type(data).__name__} has {found} columns; set dim to it."
            )
        # An evaluation keeps the units that the weights were fitted in; ``own_units`` brings the rows into them.
        if stage == "fit" or not self._has_units:
            self.adopt_units(data)

    def adopt_units(self, data: Any) -> None:
        """Takes over location, scale and support of the data, where it states them.

        Args:
            data: a data module; its ``location`` and ``scale`` have shape (D,), its ``support`` shape (2, D).
        """
        for name in ("location", "scale", "support"):
            tensor = getattr(data, name, None)
            if tensor is not None:
                setattr(self, name, torch.as_tensor(tensor).detach().clone().float())
        self._has_units = True

    def own_units(self, batch: Tensor) -> Tensor:
        """Rows in the units of the attached data module, brought into those that this module was fitted in.

        The two differ when a checkpoint is evaluated on another table, or on another split of the same one, whose own
        training rows have other means and deviations.

        Args:
            batch: shape (N, D), in the data module's units.

        Returns:
            Shape (N, D); the batch itself where the units agree.
        """
        other = self._other_units()
        if other is None:
            return batch
        location, scale = (tensor.to(batch) for tensor in other)
        return (location - self.location.to(batch) + scale * batch) / self.scale.to(batch)

    def _other_units(self) -> tuple[Tensor, Tensor] | None:
        """Location and scale of the attached data module where they are not this module's."""
        data = self._attached_datamodule()
        location, scale = getattr(data, "location", None), getattr(data, "scale", None)
        if location is None or scale is None:
            return None
        same = torch.equal(location.float(), self.location) and torch.equal(scale.float(), self.scale)
        return None if same else (location, scale)

    @property
    def log_scale(self) -> float:
        """Sum of the logarithms of ``scale``: log-density in original units is that in training units minus this."""
        return float(self.scale.log().sum())

    def get_extra_state(self) -> dict[str, Any]:
        """Units of the data, for checkpoints (not buffers: weight averaging would blend them)."""
        return {
            "location": self.location,
            "scale": self.scale,
            "support": self.support,
            "has_units": self._has_units,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores what ``get_extra_state`` gave."""
        self.location, self.scale, self.support = state["location"], state["scale"], state["support"]
        self._has_units = state["has_units"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Stamps version and format, and puts a fresh reference summary beside every set of weights in it."""
        stamp_checkpoint(checkpoint)
        refresh_summaries(checkpoint, self.parameterization, self.calibration_dataloader)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses what is no checkpoint of this package, of this format, or of this network, with one clear error.

        Raises:
            ValueError: as said.
        """
        check_checkpoint(checkpoint, self)
