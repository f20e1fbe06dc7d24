"""Lifts with one ingredient taken out: the slack, the emission, or the body."""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_lift.parameterizations.base import Parameterization
from lightning_lift.parameterizations.body import DeepSetsBody
from lightning_lift.parameterizations.emissions import Emission, EmissionName
from lightning_lift.parameterizations.lift import Lift
from lightning_lift.parameterizations.readouts import ReadoutName


class NoSlack(Lift):
    """latent = emission(z(X)): a lift without its slack, from a random emission.

    It asks whether the emission of the batch's code is enough by itself. The cross-covariance with the slack is then
    undefined (no slack, which is not zero); the one with the latent's gradient exists. Nothing sets the start: it is
    that of the random emission, another one than the network's own, so that this arm has no common start with others.

    Args:
        body_widths: widths of the body's layers; the last is the length of the code.
        standardize_summary: standardise the code over its features before the emission.
        emission_width: width of a hidden ReLU layer between code and emission; None for none.
        emission: how a tensor of the weights follows from the code: ``dense``, ``low_rank``, ``row_column`` or
            ``shared_basis``; see ``Lift``.
        emission_rank: terms of ``low_rank`` or matrices of ``shared_basis``; None for their defaults.
        emit: ``constrained`` emits the nonnegative weights only, ``all`` the networks' free parameters too.
        readout: psi: ``softplus``, ``floored_relu``, ``exp`` or ``square``.
        beta: sharpness of the softplus readout.
        floor: smallest weight that can be set; None for the readout's default.

    Raises:
        ValueError: arguments that do not fit, each by name.
    """

    def __init__(
        self,
        body_widths: Sequence[int] = (64, 64, 96),
        standardize_summary: bool = True,
        emission_width: int | None = None,
        emission: EmissionName = "dense",
        emission_rank: int | None = None,
        emit: Literal["constrained", "all"] = "constrained",
        readout: ReadoutName = "softplus",
        beta: float = 1.0,
        floor: float | None = None,
    ) -> None:
        super().__init__(
            body_widths=body_widths,
            standardize_summary=standardize_summary,
            emission_width=emission_width,
            emission=emission,
            emission_rank=emission_rank,
            emit=emit,
            use_slack=False,
            readout=readout,
            beta=beta,
            floor=floor,
        )


class _WithoutBody(Lift):
    """A lift whose latent does not depend on any data: it is evaluated as every parameterization without a summary."""

    needs_calibration = Parameterization.needs_calibration
    is_stale = Parameterization.is_stale
    calibrate = Parameterization.calibrate
    is_state_stale = Parameterization.is_state_stale
    calibrate_state = Parameterization.calibrate_state


class NoBody(_WithoutBody):
    """latent = slack: a lift without body and emission, which is the direct parameterization by another name.

    It asks whether the slack is enough by itself. Its latent does not move with the batch, so that its
    cross-covariance is zero up to round-off. With the ``slack_gain`` of an efficient lift it is the direct
    parameterization with that latent gain.

    The arguments are those of ``Lift``; those that shape body and emission may stay and have no effect. ``emit: all``
    stores the networks' free parameters here too, with the same gain.

    Raises:
        ValueError: arguments that do not fit, each by name; ``use_slack: false`` when it is bound.
    """

    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        if not self.use_slack:
            raise ValueError("use_slack=False without a body: no parameter is left; use no_slack or no_body, not both.")
        taken = super()._build(initial, free, dim)
        self.emission_hidden = nn.Sequential()  # a hidden layer that nothing reads would never see a gradient
        return taken

    def _make_body(self, dim: int, like: Tensor) -> DeepSetsBody | None:
        return None

    def _make_emission(self, code_size: int, shapes: Sequence[torch.Size], like: Tensor) -> Emission | None:
        return None

    def code(self, batch: Tensor | None = None) -> Tensor:
        """An empty code, shape (0,): there is no emission to read one.

        Args:
            batch: left alone.
        """
        assert self.slack is not None
        return self.slack.new_zeros(0)


class LearnedCode(_WithoutBody):
    """latent = b + emission(z) with z a vector of free parameters: the lift's overparameterization without its data.

    It asks whether the lift owes its result to the product of emission and code, which also a constant code has: more
    parameters, and a latent that moves further in a step. The code goes the lift's own way (standardised, through a
    hidden layer where there is one). It starts at the summary of 256 standard normal rows under the body that the lift
    would have started with, which is then dropped, so that codes start at one scale.

    The arguments are those of ``Lift``; ``body_widths`` shapes the body that makes the start, and its last width is the
    length of the code.
    """

    free_code: nn.Parameter

    def _make_body(self, dim: int, like: Tensor) -> DeepSetsBody | None:
        body = DeepSetsBody(dim, self.body_widths).to(like)
        with torch.no_grad():
            # A generator of its own: the run's draws stay those of the lift.
            rows = torch.randn(256, dim, generator=torch.Generator().manual_seed(0))
            self.free_code = nn.Parameter(body(rows.to(like)).mean(0))
        return None

    def _training_summary(self, batch: Tensor | None) -> Tensor:
        return self.free_code

    @property
    def reference_summary(self) -> Tensor:
        """The free code, shape (F,)."""
        return self.free_code
