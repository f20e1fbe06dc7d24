"""The lift: a hypernetwork that emits the weights' latent from a summary of the batch, plus a learnable slack."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_lift.parameterizations.base import Parameterization, inverse_with_gain
from lightning_lift.parameterizations.body import (
    DeepSetsBody,
    body_fingerprint,
    check_widths,
    is_distributed,
    mean_features,
    pooled_mean,
    standardize_code,
)
from lightning_lift.parameterizations.emissions import Emission, EmissionName, check_emission, make_emission
from lightning_lift.parameterizations.readouts import ReadoutName, make_readout

# A power of two multiplies without rounding. Measured: benchmarks/emissions.py.
_CHEAP_SLACK_GAIN = 16.0


class Lift(Parameterization):
    r"""latent = b + emission(z(X)), theta = psi(latent): the slack b plus an emission of the batch's code z.

    Siahkoohi, arXiv 2605.24274 (2026). In training mode z is the code of the batch at hand (detached data); in
    evaluation mode it is that of the reference summary, which ``calibrate`` makes from the training split, so that the
    density of a point never depends on the other points of its batch.

    Args:
        body_widths: widths of the body's layers; the last is the length of the code.
        standardize_summary: standardise the code over its features before the emission; needs two of them.
        emission_width: width of a hidden ReLU layer between code and emission; None for none.
        emission: how a tensor of the weights follows from the code. ``dense``: a full matrix, F numbers for each
            weight, as in the paper. ``low_rank``: U diag(s(z)) V. ``row_column``: a number for each row plus one for
            each column. ``shared_basis``: sums of a few matrices that tensors of one shape share.
        emission_rank: terms of ``low_rank`` (None: 16) or matrices of ``shared_basis`` (None: 2).
        slack_gain: b = slack_gain * (stored slack); None for 1 with a dense emission and 16 with the others. Under Adam
            at rate lr a latent with a dense emission moves up to lr (1 + |z|_1) a step, |z|_1 the sum of the code's
            absolute values (0.8 F where it is standardised), with a cheaper one only about lr slack_gain. Free tensors
            that ``emit: all`` emits have the gain too.
        emit: ``constrained`` emits the nonnegative weights only; ``all`` emits the networks' free parameters too
            (without readout), as the reference implementation does for energy-based models.
        slack_start: ``matched`` starts from the network's own initial weights (emission zero), the common start of
            fair comparisons; a number starts every slack there, with a randomly initialised emission.
        slack_std: spread of the slack around a numeric ``slack_start``.
        use_slack: False leaves the slack out (the control "body without slack"): the start is then the random emission
            of the code and cannot be set, so such a lift has no common start with other parameterizations.
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
        slack_gain: float | None = None,
        emit: Literal["constrained", "all"] = "constrained",
        slack_start: Literal["matched"] | float = "matched",
        slack_std: float = 0.0,
        use_slack: bool = True,
        readout: ReadoutName = "softplus",
        beta: float = 1.0,
        floor: float | None = None,
    ) -> None:
        super().__init__()
        if emit not in ("constrained", "all"):
            raise ValueError(f"emit={emit!r} is not known; choose 'constrained' or 'all'.")
        if isinstance(slack_start, str) and slack_start != "matched":
            raise ValueError(f"slack_start={slack_start!r}: give 'matched' or a number such as -2.")
        if not isinstance(slack_start, str) and not math.isfinite(slack_start):
            raise ValueError(f"slack_start={slack_start}: must be finite.")
        if not slack_std >= 0.0 or (slack_std and slack_start == "matched"):
            raise ValueError(f"slack_std={slack_std}: give a spread >= 0, and only beside a numeric slack_start.")
        if not use_slack and slack_start != "matched":
            raise ValueError(f"slack_start={slack_start} with use_slack=False: there is no slack to start there.")
        if emission_width is not None and emission_width < 1:
            raise ValueError(f"emission_width={emission_width}: at least one unit, or None for no hidden layer.")
        check_widths(body_widths)
        if standardize_summary and body_widths[-1] == 1:
            raise ValueError(
                f"body_widths={list(body_widths)}: a code of one number is 0 once it is standardised over its "
                "features; end with 2 units at least, or set standardize_summary=False."
            )
        check_emission(emission, emission_rank)
        if slack_gain is not None and not (slack_gain > 0.0 and math.isfinite(slack_gain)):
            raise ValueError(f"slack_gain={slack_gain}: must be finite and positive, or None for the emission's own.")
        if slack_gain is not None and not use_slack:
            raise ValueError(f"slack_gain={slack_gain} with use_slack=False: there is no slack to speed up.")
        self.body_widths = tuple(body_widths)
        self.standardize_summary = standardize_summary
        self.emission_width = emission_width
        self.emission_kind = emission
        self.emission_rank = emission_rank
        self.slack_gain = (1.0 if emission == "dense" else _CHEAP_SLACK_GAIN) if slack_gain is None else slack_gain
        self.emit = emit
        self.slack_start = slack_start
        self.slack_std = slack_std
        self.use_slack = use_slack
        self.readout = make_readout(readout, beta, floor)
        # Plain attributes in the extra state, not buffers: weight averaging blends buffers, and a blended summary
        # belongs to no body.
        self._reference_summary: Tensor | None = None
        self._fingerprint: int | None = None
        self._free_shapes: dict[str, torch.Size] = {}

    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        self.body = self._make_body(dim, initial)
        width = self.body_widths[-1]
        hidden: list[nn.Module] = []
        if self.emission_width is not None:
            hidden = [nn.Linear(width, self.emission_width), nn.ReLU()]
            width = self.emission_width
        self.emission_hidden = nn.Sequential(*hidden).to(initial)
        self.emission = self._make_emission(width, list(self.shapes.values()), initial)
        if self.use_slack:
            self.slack = nn.Parameter(initial.new_empty(initial.shape))
            if isinstance(self.slack_start, str):
                self._set_weights(initial)
            else:
                nn.init.normal_(self.slack, self.slack_start / self.slack_gain, self.slack_std / self.slack_gain)
        if self.emit == "constrained":
            return ()
        self._free_shapes = {name: tensor.shape for name, tensor in free.items()}
        start = torch.cat([tensor.detach().reshape(-1) for tensor in free.values()])
        self.free_slack = nn.Parameter(start / self.slack_gain)
        self.free_emission = self._make_emission(width, list(self._free_shapes.values()), initial)
        if self.free_emission is not None and isinstance(self.slack_start, str):
            self.free_emission.zero_()
        return tuple(free)

    def _make_body(self, dim: int, like: Tensor) -> DeepSetsBody | None:
        """The body for rows of length ``dim``, in the dtype and on the device of ``like``; None in a lift without."""
        return DeepSetsBody(dim, self.body_widths).to(like)

    def _make_emission(self, code_size: int, shapes: Sequence[torch.Size], like: Tensor) -> Emission | None:
        """The emission of tensors of these shapes; None in a lift without, whose latent is the slack alone."""
        return make_emission(self.emission_kind, code_size, shapes, self.emission_rank).to(like)

    def code(self, batch: Tensor | None = None) -> Tensor:
        """The code z that the emission reads, shape (F,) (the hidden emission layer's output where there is one).

        Args:
            batch: data rows, shape (N, D); needed in training mode, ignored in evaluation mode.

        Raises:
            ValueError: training mode without a batch, or with one without rows.
            RuntimeError: evaluation mode without a reference summary, or with one made for other body weights.
        """
        if self.training and batch is not None and not len(batch) and not is_distributed():
            raise ValueError("a batch without rows has no code: drop empty batches.")
        summary = self._training_summary(batch) if self.training else self.reference_summary
        code = standardize_code(summary) if self.standardize_summary else summary
        hidden: Tensor = self.emission_hidden(code)
        return hidden

    def _training_summary(self, batch: Tensor | None) -> Tensor:
        """Mean features of the batch at hand, shape (F,); a control conditions on something else here."""
        if batch is None:
            raise ValueError(
                "the lift in training mode conditions on the batch, and none was given: pass the batch, or call "
                "eval() to use the reference summary."
            )
        body = self._own_body
        return pooled_mean(body(batch.detach().to(next(body.parameters()).dtype)))

    def latent(self, batch: Tensor | None = None) -> Tensor:
        """slack + emission of the code, shape (d,)."""
        return self._latent_of(self.code(batch))

    def _latent_of(self, code: Tensor) -> Tensor:
        return _emitted(self.emission, code, self.slack, self.slack_gain)

    def weights(self, batch: Tensor | None = None, latent: Tensor | None = None) -> dict[str, Tensor]:
        """The emitted weights by name; with ``emit: all`` the networks' free parameters too.

        Args:
            batch: the data batch, shape (N, D).
            latent: shape (d,); replaces the constrained latent.
        """
        if self.emit == "constrained":
            return super().weights(batch, latent)
        code = self.code(batch)
        weights = super().weights(batch, self._latent_of(code) if latent is None else latent)
        flat = _emitted(self.free_emission, code, self.free_slack, self.slack_gain)
        pieces = flat.split([shape.numel() for shape in self._free_shapes.values()])
        for piece, (name, shape) in zip(pieces, self._free_shapes.items(), strict=True):
            weights[name] = piece.view(shape)
        return weights

    def _set_weights(self, flat: Tensor) -> int:
        assert self.readout is not None
        if self.slack is None:
            raise ValueError("a lift without slack has no right inverse: its start cannot be set; use use_slack: true.")
        stored, raised = inverse_with_gain(self.readout, flat, self.slack_gain)
        self.slack.data.copy_(stored)
        if self.emission is not None:
            self.emission.zero_()  # else the emission moves theta, by another amount for every batch
        return raised

    @property
    def _own_body(self) -> DeepSetsBody:
        if self.body is None:
            raise RuntimeError(f"{type(self).__name__} has no body; it must make its code in another way.")
        return self.body

    @property
    def needs_calibration(self) -> bool:
        """True: evaluation rests on the reference summary."""
        return True

    @property
    def is_stale(self) -> bool:
        """Whether the reference summary is missing or was made with other body weights than the present ones."""
        return self._reference_summary is None or self._fingerprint != body_fingerprint(self._own_body)

    @property
    def reference_summary(self) -> Tensor:
        """Mean features of the reference rows, shape (F,), on the module's device.

        Raises:
            RuntimeError: not calibrated, or calibrated for other body weights.
        """
        if self._reference_summary is None:
            raise RuntimeError(
                "the lift has no reference summary, so it cannot be evaluated: call module.calibrate() during fit, or "
                "parameterization.calibrate(batches) with rows of the training split."
            )
        if self._fingerprint != body_fingerprint(self._own_body):
            raise RuntimeError(
                "the lift's reference summary was made for other body weights than the present ones (they were "
                "trained, averaged or loaded since): call calibrate again with rows of the training split."
            )
        return self._reference_summary.to(next(self._own_body.parameters()))

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Tensor]) -> None:
        """Make the reference summary: the mean of the body's features over all rows of ``batches``.

        Not collective: every rank streams the same rows.

        Args:
            batches: tensors of shape (N, D), together the reference rows.

        Raises:
            ValueError: no rows, or rows that are not finite.
        """
        self._reference_summary = mean_features(self._own_body, batches)
        self._fingerprint = body_fingerprint(self._own_body)

    def is_state_stale(self, state: Mapping[str, Any], prefix: str) -> bool:
        """``is_stale`` for the weights in a state dictionary.

        Args:
            state: a state dictionary of the owning module.
            prefix: of this parameterization's entries in it.
        """
        extra = state[f"{prefix}_extra_state"]
        body = self._body_of(state, prefix)
        return extra["reference_summary"] is None or extra["fingerprint"] != body_fingerprint(body)

    def calibrate_state(self, state: dict[str, Any], prefix: str, batches: Iterable[Tensor]) -> None:
        """``calibrate`` for the weights in a state dictionary, changed in place; this module stays as it is.

        Args:
            state: a state dictionary of the owning module.
            prefix: of this parameterization's entries in it.
            batches: tensors of shape (N, D), together the reference rows.
        """
        body = self._body_of(state, prefix)
        state[f"{prefix}_extra_state"] = {
            **state[f"{prefix}_extra_state"],  # what a control keeps beside these two
            "reference_summary": mean_features(body, batches),
            "fingerprint": body_fingerprint(body),
        }

    def _body_of(self, state: Mapping[str, Any], prefix: str) -> DeepSetsBody:
        start = f"{prefix}body."
        body = copy.deepcopy(self._own_body)
        body.load_state_dict({name[len(start) :]: t for name, t in state.items() if name.startswith(start)})
        return body

    def get_extra_state(self) -> dict[str, Any]:
        """The reference summary with its fingerprint, for checkpoints."""
        return {"reference_summary": self._reference_summary, "fingerprint": self._fingerprint}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` gave."""
        self._reference_summary = state["reference_summary"]
        self._fingerprint = state["fingerprint"]


def _emitted(emission: Emission | None, code: Tensor, slack: Tensor | None, gain: float) -> Tensor:
    """gain * slack + emission of the code, in one pass over the d numbers."""
    if emission is None:
        assert slack is not None
        return gain * slack
    emitted: Tensor = emission(code)
    return emitted if slack is None else torch.add(emitted, slack, alpha=gain)
