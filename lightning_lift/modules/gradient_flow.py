"""What flows of convex potentials share: their map, its log-determinant, ActNorms started from data, test figures."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torchmetrics import CatMetric, MaxMetric, MeanMetric, Metric

from lightning_lift.datamodules.batches import Batch, num_rows, parts_of
from lightning_lift.flows.logdet import LogDet, LogDetChoice, LogDetResult, make_logdet
from lightning_lift.flows.transform import FlowBlock, FlowMap, standard_normal_log_prob
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.factories import factory
from lightning_lift.modules.likelihood import LikelihoodTask
from lightning_lift.networks import ConvexNetwork
from lightning_lift.parameterizations import Parameterization
from lightning_lift.potential import Potential


class GradientFlow(LikelihoodTask, ConvexModule):
    """Base of maximum likelihood for maps from data to noise that are gradients of convex potentials, composed.

    One parameterization holds the nonnegative weights of all blocks, and a lift conditions on the data batch for each.
    At a context, where the networks take one, the map is another one for each row.

    Logged beside the metrics of ``LikelihoodTask``, in test, over the first ``inverse_rows`` rows:
    ``test/inverse_error`` and ``test/inverse_error_mean`` (distance from a row to the inverse of its image),
    ``test/inverse_failures`` (the fraction whose inverse missed its tolerance), ``test/hessian_condition`` and
    ``test/hessian_condition_max`` (median and largest condition number of a block's Hessian). A stochastic
    log-determinant adds ``train/cg_residual``, ``test/cg_residual``, ``test/cg_failures`` and
    ``test/logdet_standard_error`` (a bound on its part of the standard error of ``test/nll``, beside that over the
    rows, ``test/nll_standard_error``).

    Subclass requirements: what ``LikelihoodTask`` asks for, and the constructor's arguments handed on.

    Args:
        dim: dimension D of the data.
        network: factory of a block's convex potential; ``make_network`` calls it.
        parameterization: as for ``ConvexPotentialFlow``.
        num_blocks: as for ``ConvexPotentialFlow``.
        actnorm: as for ``ConvexPotentialFlow``.
        logdet: as for ``ConvexPotentialFlow``.
        precision: as for ``ConvexPotentialFlow``.
        chunk_size: as for ``ConvexPotentialFlow``.
        stochastic_logdet: as for ``ConvexPotentialFlow``.
        inverse_tolerance: as for ``ConvexPotentialFlow``.
        inverse_rows: as for ``ConvexPotentialFlow``.
        optimizer: as for ``ConvexModule``.
        lr_scheduler: as for ``ConvexModule``.
        learning_rate: as for ``ConvexModule``.

    Raises:
        ValueError: an argument out of range, or a network whose gradient is not invertible.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[..., ConvexNetwork],
        parameterization: Callable[[], Parameterization],
        num_blocks: int,
        actnorm: bool,
        logdet: LogDetChoice,
        precision: Literal["float32", "float64"],
        chunk_size: int | None,
        stochastic_logdet: Callable[[], LogDet],
        inverse_tolerance: float | None,
        inverse_rows: int,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None,
        learning_rate: float | None,
    ) -> None:
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks!r}: a flow needs at least one block.")
        if precision not in ("float32", "float64"):
            raise ValueError(f"precision={precision!r} is not known; choose 'float32' or 'float64'.")
        if inverse_tolerance is not None and not inverse_tolerance > 0.0:
            raise ValueError(f"inverse_tolerance={inverse_tolerance}: must be positive, or None for the default.")
        if inverse_rows < 0:
            raise ValueError(f"inverse_rows={inverse_rows}: give a number of test rows, 0 for none.")
        self._num_blocks, self._actnorm = num_blocks, actnorm  # before the base class, whose constructor calls build
        super().__init__(
            dim=dim,
            network=network,
            parameterization=parameterization,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            learning_rate=learning_rate,
        )
        self.logdet = make_logdet(logdet, dim, chunk_size, factory("stochastic_logdet", stochastic_logdet, LogDet))
        self.precision_name = precision
        self.inverse_tolerance, self.inverse_rows = inverse_tolerance, inverse_rows
        self._last: LogDetResult | None = None  # of the last rows that were scored, detached
        self._measured = 0  # test rows so far
        self._started = False  # whether no ActNorm waits for data
        kinds: dict[str, type[Metric]] = {}
        if inverse_rows:
            kinds |= {"inverse_error": MaxMetric, "inverse_error_mean": MeanMetric, "inverse_failures": MeanMetric}
        if inverse_rows and self.logdet.kind == "exact":  # else the Hessian is too large to be made
            kinds["hessian_condition"] = CatMetric
        if self.logdet.kind == "stochastic":
            kinds |= {"cg_residual": MaxMetric, "cg_failures": MeanMetric, "logdet_standard_error": MeanMetric}
        self.test_figures = nn.ModuleDict({name: kind(nan_strategy="disable") for name, kind in kinds.items()})

    def build(self, network: Callable[..., ConvexNetwork]) -> nn.Module:
        """Make the blocks.

        Args:
            network: the factory given to the constructor.
        """
        return nn.ModuleList(
            FlowBlock(self.make_network(network), self._actnorm, regression=index == 0)
            for index in range(self._num_blocks)
        )

    def make_network(self, network: Callable[..., ConvexNetwork]) -> ConvexNetwork:
        """Make the convex potential of one block.

        Args:
            network: the factory given to the constructor.
        """
        return network(self.dim)

    # -- the map ------------------------------------------------------------------------------------------------------

    def flow_map(self, batch: Any = None, latent: Tensor | None = None) -> FlowMap:
        """The map from data to noise under the present weights, at the batch's context where it has one.

        Args:
            batch: data in training units; in training mode the lift conditions on it, in evaluation mode nothing does.
            latent: shape (d,); replaces the constrained latent (for diagnostics).
        """
        parts = zip(self._blocks(), self.potentials(batch, latent), strict=True)
        flow = FlowMap([block.stage(potential) for block, potential in parts], self.inverse_tolerance)
        return flow.to(torch.float64) if self.precision_name == "float64" else flow

    def _blocks(self) -> list[FlowBlock]:
        return [block for block in self.network.children() if isinstance(block, FlowBlock)]

    def _at_precision(self, x: Tensor) -> Tensor:
        return x.double() if self.precision_name == "float64" else x

    def loss(self, potential: Potential, batch: Any) -> Tensor:
        """Not for flows: a loss needs all blocks; see ``batch_loss``."""
        raise NotImplementedError(
            f"{type(self).__name__} has a loss of all its blocks at once: call batch_loss(batch)."
        )

    def batch_loss(self, batch: Any, latent: Tensor | None = None) -> Tensor:
        """The mean negative log-likelihood of the batch, nats, training units.

        Args:
            batch: data in training units.
            latent: shape (d,); replaces the constrained latent.
        """
        return -self.row_log_prob(batch, latent).mean()

    def row_log_prob(self, batch: Any, latent: Tensor | None = None) -> Tensor:
        """log N(f(x); 0, I) + log det Df(x) of each row under the present weights, training units, differentiable.

        Args:
            batch: data in training units; in training mode the lift conditions on it.
            latent: shape (d,); replaces the constrained latent.

        Returns:
            Shape (N,), nats.
        """
        batch = self.as_batch(batch)
        return self._score(self.flow_map(batch, latent), self.inputs(batch))

    def _score(self, flow: FlowMap, x: Tensor) -> Tensor:
        with torch.autocast(device_type=x.device.type, enabled=False):
            result = flow.estimate(self._at_precision(x), self.logdet)
            log_prob = standard_normal_log_prob(result.gradient) + result.logdet
        self._last = LogDetResult(*(part.detach() for part in result))
        return log_prob.to(x.dtype)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Start the ActNorms from the first calibration rows, before any validation; a resumed run keeps its own."""
        super().on_fit_start()
        self.logdet.train()
        rank_zero_info(f"log-determinant: {self.logdet.kind} in {self.dim} dimensions")
        self._started = self._asks_no_data()
        batches = None if self._started else self.calibration_dataloader()
        rows = None if batches is None else next(iter(batches), None)
        if rows is not None:  # the same in every process
            self.start_actnorms(self.transfer_batch_to_device(rows, self.device, 0))

    def on_train_start(self) -> None:
        """Project, and look again whether an ActNorm waits for data: a learning-rate finder puts weights back."""
        super().on_train_start()
        self._started = self._asks_no_data()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Start the ActNorms where there are no calibration rows: from the first batch of all processes together."""
        super().on_train_batch_start(batch, batch_idx)
        if not self._started:
            joined = {}
            for name, part in parts_of(self.as_batch(batch)).items():
                joined[name] = torch.as_tensor(self.all_gather(part)).reshape(-1, *part.shape[1:])
            self.start_actnorms(joined)

    @torch.no_grad()
    def start_actnorms(self, batch: Any) -> None:
        """Start the ActNorms, before and inside the networks, block after block; those started before stay.

        Args:
            batch: data in training units.
        """
        batch = self.as_batch(batch)
        mode = self.parameterization.training
        self.parameterization.train()  # a lift has no reference summary yet
        potentials = self.potentials(batch)
        self.parameterization.train(mode)
        x = self.inputs(batch).to(next(self.parameters()).dtype)
        for block, potential in zip(self._blocks(), potentials, strict=True):
            x = block.initialize_(x, potential)
        self._started = True

    def _asks_no_data(self) -> bool:
        return all(block.is_initialized for block in self._blocks())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of this batch; with a stochastic log-determinant the residual of its conjugate gradients too."""
        loss = super().training_step(batch, batch_idx)
        if self.logdet.kind == "stochastic" and self.global_step % 10 == 0 and self._last is not None:
            residual = self._last.residual.max()
            self.log(
                "train/cg_residual",
                residual,
                batch_size=num_rows(self.as_batch(batch)),
                sync_dist=True,
                reduce_fx="max",
            )
        return loss

    def begin_evaluation(self, stage: str) -> None:
        """Count the measured rows anew.

        Args:
            stage: ``val``, ``test`` or ``predict``.
        """
        self._measured = 0
        for name in self.test_figures:
            self._figure(name).reset()  # an interrupted evaluation leaves its own behind

    def score_test_rows(self, rows: Any) -> Tensor:
        """Accumulate the likelihood of test rows, and measure the inverse on the first of them.

        Args:
            rows: a batch in training units.
        """
        log_prob = super().score_test_rows(rows)
        if self.logdet.kind == "stochastic" and self._last is not None:
            self._figure("cg_residual").update(self._last.residual)
            self._figure("cg_failures").update((~self._last.converged).float())
            self._figure("logdet_standard_error").update(self._last.standard_error)
        share = -(-self.inverse_rows // self.trainer.world_size)
        count = min(num_rows(rows), max(0, share - self._measured))
        if count:
            self._measured += count
            parts = {name: part[:count] for name, part in parts_of(rows).items()}
            self._measure(Batch(**parts) if len(parts) > 1 else parts["x"])
        return log_prob

    @torch.no_grad()
    def _measure(self, batch: Any) -> None:
        with self._evaluation_mode():
            flow, rows = self.flow_map(batch), self._at_precision(self.inputs(batch))
            found = flow.inverse(flow.map(rows))
            error = (found.x - rows).norm(dim=1).to(self.inputs(batch).dtype)
            self._figure("inverse_error").update(error)
            self._figure("inverse_error_mean").update(error)
            self._figure("inverse_failures").update((~found.converged).float())
            if self.logdet.kind == "exact":
                self._figure("hessian_condition").update(flow.hessian_condition(rows).to(error.dtype))

    def log_test(self) -> None:
        """Log the likelihood, and what was measured of the inverse and of the log-determinant."""
        super().log_test()
        for name in self.test_figures:
            value = self._figure(name).compute()
            if name == "hessian_condition":
                self.log(f"test/{name}_max", value.max())
                value = value.median()
            self.log(f"test/{name}", value)
            self._figure(name).reset()

    def _figure(self, name: str) -> Metric:
        metric = self.test_figures[name]
        assert isinstance(metric, Metric)
        return metric
