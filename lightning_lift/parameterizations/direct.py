"""Direct: a free latent behind a readout, trained as it is."""

import math
from collections.abc import Iterable

from torch import Tensor, nn

from lightning_lift.parameterizations.base import Parameterization, inverse_with_gain
from lightning_lift.parameterizations.readouts import ReadoutName, make_readout


class DirectSoftplus(Parameterization):
    """theta = psi(latent) with latent = latent_gain * (stored number); psi is softplus unless another is chosen.

    Args:
        latent_gain: the stored number is multiplied by it. Under Adam the latent then moves latent_gain times as far a
            step: the control for the lift, whose latent moves about lr (1 + |z|_1) a step.
        readout: psi: ``softplus``, ``floored_relu``, ``exp`` or ``square``.
        beta: sharpness of the softplus readout.
        floor: smallest weight that can be set; None for the readout's default.

    Raises:
        ValueError: a gain that is not finite and positive, or readout arguments that do not fit.
    """

    raw_latent: nn.Parameter

    def __init__(
        self,
        latent_gain: float = 1.0,
        readout: ReadoutName = "softplus",
        beta: float = 1.0,
        floor: float | None = None,
    ) -> None:
        super().__init__()
        if not (latent_gain > 0.0 and math.isfinite(latent_gain)):
            raise ValueError(f"latent_gain={latent_gain}: must be finite and positive.")
        self.latent_gain = latent_gain
        self.readout = make_readout(readout, beta, floor)

    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        self.raw_latent = nn.Parameter(initial.new_empty(initial.shape))
        self._set_weights(initial)
        return ()

    def latent(self, batch: Tensor | None = None) -> Tensor:
        """latent_gain times the stored numbers, shape (d,)."""
        return self.raw_latent if self.latent_gain == 1.0 else self.latent_gain * self.raw_latent

    def _set_weights(self, flat: Tensor) -> int:
        assert self.readout is not None
        stored, raised = inverse_with_gain(self.readout, flat, self.latent_gain)
        self.raw_latent.data.copy_(stored)
        return raised


class DirectGain(DirectSoftplus):
    """``DirectSoftplus`` with a latent gain of ten: the default of every task.

    Under Adam the latent moves ten times the learning rate a step. It needs no calibration rows. For another gain take
    ``DirectSoftplus`` itself.

    Args:
        readout: psi: ``softplus``, ``floored_relu``, ``exp`` or ``square``.
        beta: sharpness of the softplus readout.
        floor: smallest weight that can be set; None for the readout's default.

    Raises:
        ValueError: readout arguments that do not fit.
    """

    def __init__(
        self,
        readout: ReadoutName = "softplus",
        beta: float = 1.0,
        floor: float | None = None,
    ) -> None:
        super().__init__(10.0, readout, beta, floor)
