"""Tasks that model the density of rows at a context: a posterior of parameters given data."""

from abc import abstractmethod

from torch import Tensor

from lightning_lift.datamodules.batches import Batch
from lightning_lift.datamodules.units import Units
from lightning_lift.modules.frozen import FrozenUnits
from lightning_lift.modules.likelihood import LikelihoodTask
from lightning_lift.modules.original_units import ConditionalUnits


class ConditionalDensityTask(ConditionalUnits, LikelihoodTask):
    """Base of tasks with a normalised density p(x | context), on convex networks or not.

    ``log_prob``, ``sample``, ``predict`` and ``freeze`` are in original units of x and of the context; losses,
    ``log_prob_scaled`` and ``sample_scaled`` are in training units. It logs what ``LikelihoodTask`` does.

    Subclass requirements: ``batch_loss``, ``log_prob_scaled``, ``sample_scaled`` and ``frozen``.
    """

    batch_fields = ("x", "context")

    @abstractmethod
    def frozen(self) -> FrozenUnits:
        """The density under the weights of evaluation, with ``log_prob`` and ``sample`` at a context."""

    def context_units(self) -> Units | None:
        """Those that the weights were fitted in."""
        return self.field_units.get("context")

    def evaluated_log_prob(self, batch: Batch) -> Tensor:
        """``log_prob_scaled`` of the rows, each at its own context.

        Args:
            batch: in training units.
        """
        assert batch.context is not None
        return self.log_prob_scaled(batch.x, batch.context)
