"""The contract of a task on convex networks: a LightningModule in which the parameterization is a plug."""

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_lift.datamodules.batches import context_of
from lightning_lift.modules.calibration import training_pass
from lightning_lift.modules.checkpoints import refresh_summaries
from lightning_lift.modules.defaults import DefaultAdam, DefaultParameterization, WarmupCosine
from lightning_lift.modules.factories import factory
from lightning_lift.modules.frozen import FrozenEnergy
from lightning_lift.modules.task import TaskModule
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import Parameterization
from lightning_lift.potential import Potential


class ConvexModule(TaskModule):
    """Base of every task on convex networks. A task is one method, written against potentials alone.

    Subclass requirements:
        - ``loss(potential, batch)``: one scalar, the mean over the batch;
        - ``batch_fields``, where a batch has parts (a target, a context): their names, in the order of a loader;
        - constructor arguments plain or factories, all of them passed on or stored by name;
        - a task of several networks overrides ``build``, and reads ``potentials(batch)`` in ``loss`` or overrides
          ``batch_loss``.
        Training, validation, projection after each real optimizer step, calibration of the lift, checkpoints and
        hyperparameters are done here.

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        network: factory of the convex network, called with ``dim``.
        parameterization: factory of the way in which the weights are kept nonnegative: ``direct_gain``,
            ``direct``, ``pgd``, ``lift``.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
            None for a constant rate.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.

    Raises:
        ValueError: a dimension below 1 or a learning rate that is not positive.
        TypeError: a factory that is not one, or that a checkpoint could not store.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[[int], ConvexNetwork] = ICNN,
        parameterization: Callable[[], Parameterization] = DefaultParameterization,
        optimizer: OptimizerCallable = DefaultAdam,
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__(dim=dim, optimizer=optimizer, lr_scheduler=lr_scheduler, learning_rate=learning_rate)
        self._projection_hooks: list[RemovableHandle] = []
        # The network draws its start before the parameterization draws anything: one seed, one start for all.
        self.network = self.build(factory("network", network, ConvexNetwork))
        self._prefixes = [name for name, m in self.network.named_modules() if isinstance(m, ConvexNetwork)]
        made = factory("parameterization", parameterization, Parameterization)()
        if not isinstance(made, Parameterization):
            raise TypeError(f"parameterization made a {type(made).__name__}, not a Parameterization.")
        self.parameterization = made.bind(self.network, self.summary_dim)

    def build(self, network: Callable[[int], ConvexNetwork]) -> nn.Module:
        """Make the task's network, or a module that contains all of its convex networks.

        Args:
            network: the factory given to the constructor.
        """
        return network(self.dim)

    # -- what a task is written against -------------------------------------------------------------------------

    def loss(self, potential: Potential, batch: Any) -> Tensor:
        """The task: one scalar, the mean over the batch.

        Args:
            potential: the convex function under the present weights, at the batch's context where there is one.
            batch: data in training units: rows (N, D), or a ``Batch`` where ``batch_fields`` names parts.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(potential, batch).")

    @property
    def summary_dim(self) -> int:
        """How many numbers :meth:`summary_rows` gives for a row."""
        shapes = [network.context_shape for network in self._networks() if network.context_shape is not None]
        return self.dim + (math.prod(shapes[0]) if shapes else 0)

    def summary_rows(self, batch: Any) -> Tensor:
        """What a lift conditions on in training: the inputs, beside them the context; never a target.

        Args:
            batch: as the task takes it.

        Returns:
            Shape (N, ``summary_dim``).
        """
        context = context_of(batch)
        if context is None:
            return self.inputs(batch)
        return torch.cat([self.inputs(batch), context.flatten(1).to(self.inputs(batch))], dim=1)

    def conditioning(self, batch: Any) -> Tensor:
        """What :meth:`summary_rows` gives for a batch in whatever form a loader has it.

        Args:
            batch: with or without a target.
        """
        return self.summary_rows(self.as_batch(batch, predicting=True))

    def latent(self, batch: Any = None) -> Tensor:
        """The constrained latent, shape (d,), which in training mode a lift conditions on the batch.

        Args:
            batch: rows (N, D) or a ``Batch``; needed by a lift in training mode only.
        """
        with torch.autocast(device_type=self.device.type, enabled=False):
            return self.parameterization.latent(None if batch is None else self.conditioning(batch))

    def batch_loss(self, batch: Any, latent: Tensor | None = None) -> Tensor:
        """The task's loss on a batch: what training steps and diagnostics call.

        Args:
            batch: data in training units: rows (N, D), or a ``Batch`` where ``batch_fields`` names parts; in training
                mode the lift conditions on it.
            latent: shape (d,); replaces the constrained latent (for diagnostics that differentiate in it).
        """
        batch = self.as_batch(batch)
        return self.loss(self.potential(batch, latent), batch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of this batch, plus the parameterization's own penalty, which ``train/loss`` leaves out."""
        loss = super().training_step(batch, batch_idx)
        penalty = self.parameterization.penalty()
        return loss if penalty is None else loss + penalty

    def potential(self, batch: Any = None, latent: Tensor | None = None) -> Potential:
        """The convex function under the present weights, at the batch's context where it has one.

        Args:
            batch: rows (N, D) or a ``Batch``; in training mode the lift conditions on it, in evaluation mode nothing
                does.
            latent: shape (d,); replaces the constrained latent (for diagnostics).
        """
        return self.potentials(batch, latent)[0]

    def potentials(self, batch: Any = None, latent: Tensor | None = None) -> tuple[Potential, ...]:
        """One potential for each convex network, in the order of ``named_modules``.

        Args:
            batch: rows (N, D) or a ``Batch``.
            latent: shape (d,); replaces the constrained latent.
        """
        batch = None if batch is None else self.as_batch(batch, predicting=True)
        context = context_of(batch)
        with torch.autocast(device_type=self.device.type, enabled=False):
            weights = self.parameterization.weights(None if batch is None else self.summary_rows(batch), latent)
        potentials = []
        for prefix, network in zip(self._prefixes, self._networks(), strict=True):
            start = f"{prefix}." if prefix else ""
            own = {name[len(start) :]: tensor for name, tensor in weights.items() if name.startswith(start)}
            potentials.append(Potential(network, own, None if network.context_shape is None else context))
        return tuple(potentials)

    def _networks(self) -> list[ConvexNetwork]:
        return [cast(ConvexNetwork, self.network.get_submodule(prefix)) for prefix in self._prefixes]

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The potential's value at each row, shape (N,)."""
        batch = self.own_units(self.as_batch(batch, predicting=True))
        potential = self.potential()
        if potential.network.context_shape is not None:
            potential = potential.at(context_of(batch))
        return potential.value(self.inputs(batch))

    def on_fit_start(self) -> None:
        """Put parameterizations into training mode; parts of the network stay as the user has set them.

        Raises:
            RuntimeError: a lift, and no rows for its reference summary.
        """
        super().on_fit_start()
        self.training = True
        for part in self.modules():
            if isinstance(part, Parameterization):
                part.train()
        if self.parameterization.needs_calibration:
            self._calibration_batches()

    # -- projection -------------------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Project once, then after every real optimizer step."""
        super().on_train_start()
        self._remove_projection_hooks()
        self.parameterization.project_()
        # A post-step hook of the optimizer: before any callback sees the weights (step checkpoints, averaging), once
        # per real step under accumulation, and for closures and manual optimisation as well.
        optimizers = self.optimizers(use_pl_optimizer=False)
        own = {id(parameter) for parameter in self.parameterization.parameters()}
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
                continue  # a step of a task's other optimizer is no step of the weights
            hook = optimizer.register_step_post_hook(lambda *_: self.parameterization.after_step_())
            self._projection_hooks.append(hook)

    def on_train_end(self) -> None:
        """Leave a module that can be evaluated: weight averaging has just changed the weights."""
        super().on_train_end()
        self._remove_projection_hooks()
        self.calibrate()

    def teardown(self, stage: str) -> None:
        """Remove the projection hooks."""
        super().teardown(stage)
        self._remove_projection_hooks()

    def _remove_projection_hooks(self) -> None:
        for hook in self._projection_hooks:
            hook.remove()
        self._projection_hooks.clear()

    # -- calibration ------------------------------------------------------------------------------------------------

    def calibration_dataloader(self) -> Iterable[Any] | None:
        """Rows for the reference summary, or None where there are none to be had.

        They are the data module's; where it has none, or a fit has data loaders alone, all rows of the training
        loader's data set. Override it for others, which must not share a generator with the training loader.
        """
        source = getattr(self._attached_datamodule(), "calibration_dataloader", None)
        if source is not None:
            return cast(Iterable[Any], source())
        return None if self._trainer is None else training_pass(self.trainer)

    def calibrate(self, batches: Iterable[Any] | None = None) -> None:
        """Make the lift's reference summary anew; a no-op for other parameterizations.

        Args:
            batches: of the training split, in training units, as a loader gives them. None for those of
                :meth:`calibration_dataloader`, if the body's weights have changed since the last time.

        Raises:
            RuntimeError: it is stale and there are no calibration rows.
        """
        if batches is not None:
            self.parameterization.calibrate(self._summaries(batches))
        elif self.parameterization.is_stale:
            self.parameterization.calibrate(self._calibration_batches())

    def _calibration_batches(self) -> Iterable[Tensor]:
        rows = self._calibration_rows()
        if rows is None:
            raise RuntimeError(
                f"{type(self.parameterization).__name__} is evaluated on a reference summary of the training split, "
                "and there are no rows for it: fit with a data module that has calibration_dataloader(), or with a "
                "DataLoader of a data set in order or shuffled; override calibration_dataloader() of the module; or "
                "call module.calibrate(batches)."
            )
        return rows

    def _summaries(self, batches: Iterable[Any]) -> Iterable[Tensor]:
        """What the lift conditions on, of one batch at a time; a target need not be known."""
        return map(self.conditioning, batches)

    def _calibration_rows(self) -> Iterable[Tensor] | None:
        batches = self.calibration_dataloader()
        return None if batches is None else self._summaries(batches)

    def on_validation_epoch_start(self) -> None:
        """Calibrate during fit. Not in ``on_validation_start``: weight averaging swaps weights after that hook."""
        super().on_validation_epoch_start()
        if self.trainer.state.fn == "fit":
            self.calibrate()

    def frozen(self) -> nn.Module:
        """What ``freeze`` returns: the network under the weights of evaluation, with no lift inside."""
        return FrozenEnergy(self.potential())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Stamp version and format, and put a fresh reference summary beside every set of weights in it."""
        super().on_save_checkpoint(checkpoint)
        refresh_summaries(checkpoint, self.parameterization, self._calibration_rows)
