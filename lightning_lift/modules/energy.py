"""Log-concave energy-based models: p(x) = exp(-E(x)) / Z with a convex energy E."""

from collections.abc import Callable

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lightning_lift.modules.density import DensityModule
from lightning_lift.modules.factories import factory
from lightning_lift.modules.frozen import FrozenDensity, FrozenEnergy, within
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.networks.base import check_points
from lightning_lift.parameterizations import Lift, Parameterization
from lightning_lift.partition import Partition, PartitionEstimate, Quadrature
from lightning_lift.potential import Potential


class LogConcaveEBM(DensityModule):
    """Maximum likelihood for exp(-E) / Z: loss = mean E(x) + log Z, nats.

    Logged beside the metrics of ``DensityModule``: ``val/`` and ``test/log_partition``, and the estimator's own
    figures on its accuracy (``tail_bound``, ``quadrature_error`` for quadrature).

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        network: factory of the convex energy, called with ``dim``.
        parameterization: factory of the way in which the weights are kept nonnegative: ``lift``, ``direct``, ``pgd``.
        partition: factory of the estimator of log Z.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[[int], ConvexNetwork] = ICNN,
        parameterization: Callable[[], Parameterization] = Lift,
        partition: Callable[[], Partition] = Quadrature,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__(
            dim=dim,
            network=network,
            parameterization=parameterization,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            learning_rate=learning_rate,
        )
        self.partition: Partition = factory("partition", partition)()
        self.partition.prepare(self.support, None)
        self._estimate: PartitionEstimate | None = None

    def setup(self, stage: str) -> None:
        """Takes over the data's units and tells the partition estimator where the data live."""
        super().setup(stage)
        self.partition.prepare(self.support, getattr(self._attached_datamodule(), "window", None))

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        """Mean energy of the batch plus log Z: the negative log-likelihood in nats, training units.

        Args:
            potential: the energy.
            batch: data, shape (N, D).
        """
        log_partition: Tensor = self.partition(potential)
        return potential.value(batch).mean() + log_partition

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density -E(x) - log Z in training units under the weights of evaluation, -inf outside the support.

        Args:
            x: points in training units, shape (N, D).

        Returns:
            Shape (N,), nats.
        """
        check_points(x, self.dim)
        with self._evaluation_mode():
            potential = self.potential()
            estimate = self._evaluations_estimate() or self.partition.evaluate(potential)
            log_prob = -potential.value(x) - estimate.log_partition
        return torch.where(within(x, self.support.to(x)), log_prob, -torch.inf)

    def _evaluations_estimate(self) -> PartitionEstimate | None:
        # Only inside the evaluation that made it: an interrupted one leaves it behind, and the weights move on.
        trainer = self._trainer
        inside = trainer is not None and (trainer.evaluating or trainer.predicting or trainer.sanity_checking)
        return self._estimate if inside else None

    @torch.no_grad()
    def sample(self, num_samples: int, seed: int = 0) -> Tensor:
        """Independent draws in training units under the weights of evaluation.

        Args:
            num_samples: how many, n.
            seed: of the draws' own generator.

        Returns:
            Shape (n, D).
        """
        with self._evaluation_mode():
            return self.partition.sample(self.potential(), num_samples, seed)

    def frozen(self) -> FrozenDensity:
        """The density under the weights of evaluation, with ``log_prob(x)`` and ``sample(n)`` in original units."""
        potential = self.potential()
        energy = FrozenEnergy(potential)
        log_partition = self.partition.evaluate(potential).log_partition
        return FrozenDensity(energy, log_partition, self.location, self.scale, self.support, self.partition)

    def begin_evaluation(self, stage: str) -> None:
        """Estimates log Z once: it is the same for every batch of an evaluation.

        Args:
            stage: ``val``, ``test`` or ``predict``.
        """
        with self._evaluation_mode():
            self._estimate = self.partition.evaluate(self.potential())
        if stage != "predict":
            self.log(f"{stage}/log_partition", self._estimate.log_partition)
            for name, figure in self._estimate.diagnostics.items():
                self.log(f"{stage}/{name}", figure)

    def end_evaluation(self) -> None:
        """Forgets that log Z: the weights may move now."""
        self._estimate = None
