"""The losses of several convex potential flows: exact log-determinants in few dimensions, in plain operations."""

from typing import cast

import torch
from torch import Tensor

from lightning_lift.compare.stacked_loss import Core, StackedLoss
from lightning_lift.compare.stacking import NotVectorizable, SeedStack
from lightning_lift.flows.logdet import ExactLogDet, LogDet, LogDetResult
from lightning_lift.flows.transform import standard_normal_log_prob
from lightning_lift.modules.flow import ConvexPotentialFlow
from lightning_lift.potential import Potential

_UNROLLED_UP_TO = 4


def flow_loss(stack: SeedStack, module: ConvexPotentialFlow) -> StackedLoss:
    """The losses of a stack of flows.

    Args:
        stack: of the flows.
        module: the first of them.

    Raises:
        NotVectorizable: a loss of its own, a log-determinant that is estimated, or too many dimensions.
    """
    kind = type(module)
    if kind.batch_loss is not ConvexPotentialFlow.batch_loss or kind._score is not ConvexPotentialFlow._score:
        raise NotVectorizable(f"{kind.__name__} has a loss of its own")
    if not isinstance(module.logdet, ExactLogDet):
        raise NotVectorizable("its log-determinant is estimated with random numbers")
    if module.dim > _UNROLLED_UP_TO:
        raise NotVectorizable(f"Hessians of {module.dim} dimensions keep the processor busy one run at a time")
    return StackedLoss(stack, _FlowCore(module))


class _FlowCore(Core):
    """Negative log-likelihood of a convex potential flow with exact log-determinants in few dimensions."""

    def __init__(self, module: ConvexPotentialFlow) -> None:
        super().__init__(module)
        self._logdet = _UnrolledLogDet()

    def results(self, batch: Tensor) -> Tensor:
        flow = cast(ConvexPotentialFlow, self.module).flow_map(batch)
        x = batch.to(flow.stages[0].potential.weights[next(iter(flow.stages[0].potential.weights))])
        result = flow.estimate(x, self._logdet)
        return -(standard_normal_log_prob(result.gradient) + result.logdet).to(batch.dtype).mean()


class _UnrolledLogDet(LogDet):
    """Gradient and log-determinant by ``derivatives`` and a Cholesky factor in plain operations.

    The network's own ``gradient_logdet`` may be written by hand for autograd, which vmap cannot take; and LAPACK would
    be called once for each point of each seed.
    """

    kind = "exact"

    def forward(self, potential: Potential, x: Tensor) -> LogDetResult:
        gradient, hessian = potential.value_gradient_hessian(x)[1:]
        logdet = unrolled_logdet(hessian)
        zero = torch.zeros_like(logdet)
        return LogDetResult(gradient, logdet, zero, zero, torch.ones_like(zero, dtype=torch.bool))


def unrolled_logdet(hessian: Tensor) -> Tensor:
    """log det of (N, D, D) for small D, NaN where a pivot is not positive: shape (N,)."""
    dim = hessian.shape[-1]
    rows = [[hessian[:, i, j] for j in range(i + 1)] for i in range(dim)]
    pivots = []
    for k in range(dim):
        pivot = rows[k][k]
        pivots.append(torch.where(pivot > 0, pivot, torch.nan).log())
        for i in range(k + 1, dim):
            for j in range(k + 1, i + 1):
                rows[i][j] = rows[i][j] - rows[i][k] * rows[j][k] / pivot
    return torch.stack(pivots).sum(0)
