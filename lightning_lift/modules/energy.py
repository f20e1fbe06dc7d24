"""Log-concave energy-based models: p(x) = exp(-E(x)) / Z with a convex energy E."""

from collections.abc import Callable

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lightning_lift.modules.defaults import DefaultAdam, DefaultParameterization, WarmupCosine
from lightning_lift.modules.density import DensityModule
from lightning_lift.modules.factories import factory
from lightning_lift.modules.frozen import FrozenDensity, FrozenEnergy, inside_only
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.networks.base import check_points
from lightning_lift.parameterizations import Parameterization
from lightning_lift.partition import Partition, PartitionEstimate, Quadrature
from lightning_lift.potential import Potential


class LogConcaveEBM(DensityModule):
    """Maximum likelihood for exp(-E) / Z: loss = mean E(x) + log Z, nats.

    ``partition`` trains, and its gradient may be an estimate whose value is not log Z (``Langevin``: ``train/loss`` is
    then a difference of mean energies). What is evaluated is a likelihood always: validation, test, predict and
    ``freeze`` use the log Z of ``evaluation``.

    Logged beside the metrics of ``DensityModule``: ``val/`` and ``test/log_partition``, the estimator's own figures on
    its accuracy (each estimator documents its own), and in validation those of the training partition on its state.
    ``test/nll_standard_error`` is over the test rows;
    ``test/nll_total_error`` is the root of the sum of its square and of log Z's squared standard error, where the
    estimator states one: rows and chains are drawn independently.

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        network: factory of the convex energy, called with ``dim``.
        parameterization: factory of the way in which the weights are kept nonnegative: ``direct_gain``,
            ``direct``, ``pgd``, ``lift``.
        partition: factory of the estimator of log Z in training: ``Quadrature`` (one or two dimensions),
            ``Langevin``, ``FlowImportance``.
        evaluation: factory of the estimator of log Z in validation, test, predict and freeze, such as
            ``AnnealedImportanceSampling``, and of the draws; None for what ``partition`` itself brings.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
            None for a constant rate.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[[int], ConvexNetwork] = ICNN,
        parameterization: Callable[[], Parameterization] = DefaultParameterization,
        partition: Callable[[], Partition] = Quadrature,
        optimizer: OptimizerCallable = DefaultAdam,
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        learning_rate: float | None = None,
        evaluation: Callable[[], Partition] | None = None,
    ) -> None:
        super().__init__(
            dim=dim,
            network=network,
            parameterization=parameterization,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            learning_rate=learning_rate,
        )
        self.partition: Partition = factory("partition", partition, Partition)()
        self.evaluation: Partition | None = (
            None if evaluation is None else factory("evaluation", evaluation, Partition)()
        )
        self._prepare(None)
        self._estimate: PartitionEstimate | None = None

    def setup(self, stage: str) -> None:
        """Take over the data's units and tell the partition estimator where the data live."""
        super().setup(stage)
        self._prepare(getattr(self._attached_datamodule(), "window", None))

    def _prepare(self, window: Tensor | None) -> None:
        for partition in (self.partition, self.evaluation):
            if partition is not None:
                partition.prepare(self.support, window)

    @property
    def evaluator(self) -> Partition:
        """The estimator of log Z in evaluation."""
        return self.partition if self.evaluation is None else self.evaluation

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        """Mean energy of the batch plus what the partition gives: with log Z itself, the negative log-likelihood.

        Nats, training units.

        Args:
            potential: the energy.
            batch: data, shape (N, D).
        """
        log_partition: Tensor = self.partition(potential)
        return potential.value(batch).to(log_partition.dtype).mean() + log_partition

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """Log-density -E(x) - log Z in training units under the weights of evaluation, -inf outside the support.

        Args:
            x: points in training units, shape (N, D).

        Returns:
            Shape (N,), nats.
        """
        check_points(x, self.dim)
        with self._evaluation_mode():
            potential = self.potential()
            estimate = self._evaluations_estimate() or self.evaluator.evaluate(potential)
            if estimate.log_partition.dtype != x.dtype:  # float64: log Z and the energies are too large for float32
                potential = potential.to(estimate.log_partition.dtype)
            energies = potential.value(x.to(estimate.log_partition.dtype))
            return inside_only((-energies - estimate.log_partition).to(x.dtype), x, self.support.to(x))

    def _evaluations_estimate(self) -> PartitionEstimate | None:
        # Only inside the evaluation that made it: an interrupted one leaves it behind, and the weights move on.
        trainer = self._trainer
        inside = trainer is not None and (trainer.evaluating or trainer.predicting or trainer.sanity_checking)
        return self._estimate if inside else None

    @torch.no_grad()
    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Draws in training units under the weights of evaluation; ``sampling_diagnostics`` judges them.

        Args:
            num_samples: how many, n.
            generator: of all random numbers, on the CPU.

        Returns:
            Shape (n, D).
        """
        with self._evaluation_mode():
            return self.evaluator.sample(self.potential(), num_samples, generator)

    @property
    def sampling_diagnostics(self) -> dict[str, float]:
        """Figures on the last draws: ``r_hat``, ``effective_sample_size``, ...; empty where draws are exact."""
        return self.evaluator.sampling_diagnostics

    def frozen(self) -> FrozenDensity:
        """The density under the weights of evaluation, with ``log_prob(x)`` and ``sample(n)`` in original units."""
        potential = self.potential()
        log_partition = self.evaluator.evaluate(potential).log_partition
        energy = FrozenEnergy(potential.to(log_partition.dtype))
        return FrozenDensity(energy, log_partition, self.location, self.scale, self.support, self.evaluator)

    def begin_evaluation(self, stage: str) -> None:
        """Estimate log Z once: it is the same for every batch of an evaluation.

        Args:
            stage: ``val``, ``test`` or ``predict``.
        """
        evaluate = self.evaluator.evaluate_quickly if stage == "val" else self.evaluator.evaluate
        with self._evaluation_mode():
            self._estimate = evaluate(self.potential())
        if stage == "predict":
            return
        self.log(f"{stage}/log_partition", self._estimate.log_partition)
        figures = dict(self._estimate.diagnostics)
        if stage == "val":
            figures |= self.partition.diagnostics()
        for name, figure in figures.items():
            self.log(f"{stage}/{name}", figure)

    def on_test_epoch_end(self) -> None:
        """Log what ``DensityModule`` does, and the error of rows and log Z together."""
        error = None if self._estimate is None else self._estimate.diagnostics.get("log_partition_standard_error")
        if error is not None:
            rows = self.test_nll_standard_error.compute()
            self.log("test/nll_total_error", (rows.square() + error**2).sqrt())
        super().on_test_epoch_end()

    def end_evaluation(self) -> None:
        """Forget that log Z: the weights may move now."""
        self._estimate = None
