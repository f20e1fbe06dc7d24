"""Conditional convex flows as density estimators of sbi: ``NPE(density_estimator=convex_flow())``. Extra ``sbi``."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from lightning_lift.datamodules.parts import units_of_context, units_of_part
from lightning_lift.modules import ConditionalConvexFlow

try:
    from sbi.neural_nets.estimators import ConditionalDensityEstimator
except ImportError as error:
    raise ImportError("lightning_lift.sbi needs sbi 0.27: pip install 'lightning-lift[sbi]'.") from error

_ROWS = 4096  # of a summary at a time


class ConvexFlowEstimator(ConditionalDensityEstimator):  # type: ignore[misc]  # sbi has no types
    """A conditional convex flow behind the interface of sbi 0.27.

    sbi trains with an optimizer of its own and knows no hook of Lightning's, so the estimator follows by itself: in
    training mode, what a parameterization needs after a step (a projection) is done before the weights are next read; a
    lift conditions on the batch at hand in training mode, and is calibrated on the training rows at each change to
    evaluation mode.

    Args:
        flow: the flow, in the units of these rows, its ActNorms started.
        theta: training parameters in original units, shape (N, D).
        x: training data, shape (N, ...).
    """

    def __init__(self, flow: ConditionalConvexFlow, theta: Tensor, x: Tensor) -> None:
        super().__init__(flow, theta.shape[1:], x.shape[1:])
        self._steps = self._count_steps()
        # A lift's own rows travel with the estimator: sbi's loop does not say which they are.
        self._summaries: tuple[Tensor, ...] = ()
        if flow.parameterization.needs_calibration:
            self._summaries = flow.summary_rows(flow.to_batch(theta, x)).split(_ROWS)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; a lift is calibrated before the latter."""
        self._follow_steps()
        super().train(mode)
        if mode:
            self.net.parameterization.project_()
            self._steps = self._count_steps()
        elif self.net.parameterization.is_stale:
            self.net.parameterization.calibrate(self._summaries)
        return self

    def _follow_steps(self) -> None:
        """What must follow an optimizer step, once it has been taken."""
        if self.training and self._count_steps() != self._steps:
            self.net.parameterization.after_step_()
            self._steps = self._count_steps()

    def _count_steps(self) -> int:
        # torch counts each change of a tensor in place: an optimizer's step is one
        return sum(parameter._version for parameter in self.net.parameterization.parameters())

    def log_prob(self, input: Tensor, condition: Tensor, **kwargs: Any) -> Tensor:
        """log q(theta | x), differentiable in theta.

        Args:
            input: parameters, shape (S, B, D) or (B, D).
            condition: data, shape (B, ...) or (S, B, ...); one of them for all parameters, where B = 1.
            kwargs: none.

        Returns:
            Shape (S, B), nats.

        Raises:
            ValueError: a density that is trained without its loss (in sbi's later rounds), by a parameterization whose
                penalty would be left out.
        """
        if self.training and torch.is_grad_enabled() and self.net.parameterization.penalty() is not None:
            raise ValueError(
                f"{type(self.net.parameterization).__name__} adds a penalty to the loss, which later rounds of sbi do "
                "not call: train them with force_first_round_loss=True, or choose another parameterization."
            )
        return self._log_prob(input, condition)

    def _log_prob(self, input: Tensor, condition: Tensor) -> Tensor:
        self._check_input_shape(input)
        self._check_condition_shape(condition)
        self._follow_steps()
        theta, x, batch = self._broadcast_and_align(input, condition)
        theta, x = theta.flatten(0, 1), x.flatten(0, 1)
        if self.training:
            log_prob: Tensor = self.net.row_log_prob(self.net.to_batch(theta, x)) - self.net.log_scale
        else:
            one = condition.numel() == self.condition_shape.numel()  # observation, bound once for all parameters
            log_prob = self.net.log_prob(theta, x[:1] if one else x)
        return log_prob.view(-1, batch)

    def loss(self, input: Tensor, condition: Tensor, **kwargs: Any) -> Tensor:
        """-log q(theta | x), in training mode with the parameterization's own penalty beside it.

        Args:
            input: parameters, shape (B, D).
            condition: data, shape (B, ...).
            kwargs: none.

        Returns:
            Shape (B,), nats.
        """
        losses = -self._log_prob(input.unsqueeze(0), condition)[0]
        penalty = self.net.parameterization.penalty() if self.training else None
        return losses if penalty is None else losses + penalty

    def sample(self, sample_shape: torch.Size, condition: Tensor, **kwargs: Any) -> Tensor:
        """Independent draws of theta under the weights of evaluation, from torch's global random state.

        Args:
            sample_shape: how many of each.
            condition: data, shape (B, ...).
            kwargs: none.

        Returns:
            Shape (*sample_shape, B, D).

        Raises:
            RuntimeError: points whose inverse is not found.
        """
        self._check_condition_shape(condition)
        with self._evaluation():
            draws: Tensor = self.net.sample(math.prod(sample_shape), condition.reshape(-1, *self.condition_shape))
        return draws.to(next(self.parameters())).view(*sample_shape, *draws.shape[1:])

    def sample_and_log_prob(self, sample_shape: torch.Size, condition: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """``sample`` with the log-density of each draw, shapes (*sample_shape, B, D) and (*sample_shape, B)."""
        with self._evaluation():
            draws = self.sample(sample_shape, condition)
            log_prob = self.log_prob(draws.view(-1, *draws.shape[-2:]), condition)
        return draws, log_prob.view(draws.shape[:-1])

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)


def _build(arguments: dict[str, Any], theta: Tensor, x: Tensor) -> ConvexFlowEstimator:
    if theta.ndim != 2:
        raise ValueError(f"theta of shape {tuple(theta.shape)}: a convex flow takes parameters (N, D).")
    flow = ConditionalConvexFlow(theta.shape[1], context_shape=tuple(x.shape[1:]), **arguments)
    units, of_context = units_of_part(theta), units_of_context(x)
    flow.adopt_units(SimpleNamespace(**units._asdict(), field_units={"context": of_context}))
    flow.start_actnorms(flow.to_batch(theta, x))
    return ConvexFlowEstimator(flow, theta, x)


def convex_flow(**arguments: Any) -> partial[ConvexFlowEstimator]:
    """What sbi takes as a density estimator: ``NPE(density_estimator=convex_flow(num_blocks=2))``.

    Parameters and data are standardised by the training rows; sbi's own options for that are not needed.

    Args:
        arguments: of :class:`~lightning_lift.modules.ConditionalConvexFlow`, but ``dim`` and the context's shape, which
            are those of the simulations. Optimizer and schedule are sbi's: give ``train`` a ``learning_rate``.

    Returns:
        A function of theta, shape (N, D), and x, shape (N, ...), that makes a :class:`ConvexFlowEstimator`.
    """
    return partial(_build, arguments)
