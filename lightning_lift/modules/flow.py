"""Convex potential flows: the gradient of a convex potential as an invertible map from data to noise."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torchmetrics import CatMetric, MaxMetric, MeanMetric, Metric

from lightning_lift.flows.inverse import ConvexConjugate, InverseResult, convex_conjugate
from lightning_lift.flows.logdet import LogDet, LogDetChoice, LogDetResult, StochasticLogDet, make_logdet
from lightning_lift.flows.transform import FlowBlock, FlowMap, FlowStage, all_points, standard_normal_log_prob
from lightning_lift.modules.defaults import DefaultAdam, DefaultParameterization, WarmupCosine
from lightning_lift.modules.density import DensityModule
from lightning_lift.modules.factories import factory
from lightning_lift.modules.frozen import FrozenFlow
from lightning_lift.networks import ConvexNetwork, FlowICNN
from lightning_lift.networks.base import check_points
from lightning_lift.parameterizations import Parameterization
from lightning_lift.potential import Potential


class ConvexPotentialFlow(DensityModule):
    """Maximum likelihood for f = grad F: log p(x) = log N(f(x); 0, I) + log det Hess F(x), nats.

    With several blocks f is the composition of such maps (Huang et al., Convex potential flows, ICLR 2021). One
    parameterization holds the nonnegative weights of all blocks, and a lift conditions on the data batch for each.

    Logged beside the metrics of ``DensityTask``, in test, over the first ``inverse_rows`` rows: ``test/inverse_error``
    and ``test/inverse_error_mean`` (distance from a row to the inverse of its image), ``test/inverse_failures`` (the
    fraction whose inverse missed its tolerance), ``test/hessian_condition`` and ``test/hessian_condition_max`` (median
    and largest condition number of a block's Hessian). A stochastic log-determinant adds ``train/cg_residual``,
    ``test/cg_residual``, ``test/cg_failures`` and ``test/logdet_standard_error`` (a bound on its part of the standard
    error of ``test/nll``, beside that over the rows, ``test/nll_standard_error``).

    Args:
        dim: dimension D of the data; linked from the data module on the command line.
        network: factory of a block's convex potential F, called with ``dim``; twice differentiable, strongly convex.
        parameterization: factory of the way in which the weights are kept nonnegative: ``direct_gain``,
            ``direct``, ``pgd``, ``lift``.
        num_blocks: potentials whose gradient maps are composed.
        actnorm: an ActNorm before each block, started from data, so that a block sees rows of mean 0 and variance 1.
        logdet: ``exact`` (Hessian and Cholesky factor), ``stochastic`` (conjugate gradients and Lanczos quadrature), or
            ``auto``: exact up to 256 dimensions; the choice is printed.
        precision: of the map and its log-determinant; ``float64`` is for stiff potentials, the weights stay as they
            are.
        chunk_size: rows at a time in the exact log-determinant; None for what is fastest.
        stochastic_logdet: factory of the stochastic log-determinant.
        inverse_tolerance: relative residual |f(x) - y| / (1 + |y|) at which an inverse counts as found; None for 1e-5
            in float32.
        inverse_rows: test rows that the inverse and the condition number are measured on; 0 for none.
        optimizer: factory of the optimizer, called with the parameters.
        lr_scheduler: factory of a learning-rate scheduler, called with the optimizer; it steps once per optimizer step.
            None for a constant rate.
        learning_rate: replaces the optimizer's own learning rate; what a learning-rate finder sets.

    Raises:
        ValueError: an argument out of range, or a network whose gradient is not invertible.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[[int], ConvexNetwork] = FlowICNN,
        parameterization: Callable[[], Parameterization] = DefaultParameterization,
        num_blocks: int = 1,
        actnorm: bool = True,
        logdet: LogDetChoice = "auto",
        precision: Literal["float32", "float64"] = "float32",
        chunk_size: int | None = None,
        stochastic_logdet: Callable[[], LogDet] = StochasticLogDet,
        inverse_tolerance: float | None = None,
        inverse_rows: int = 1000,
        optimizer: OptimizerCallable = DefaultAdam,
        lr_scheduler: LRSchedulerCallable | None = WarmupCosine,
        learning_rate: float | None = None,
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

    def build(self, network: Callable[[int], ConvexNetwork]) -> nn.Module:
        """Make the blocks.

        Args:
            network: the factory given to the constructor.
        """
        return nn.ModuleList(FlowBlock(network(self.dim), self._actnorm) for _ in range(self._num_blocks))

    # -- the map ------------------------------------------------------------------------------------------------------

    def flow_map(self, batch: Tensor | None = None, latent: Tensor | None = None) -> FlowMap:
        """The map from data to noise under the present weights.

        Args:
            batch: data, shape (N, D); in training mode the lift conditions on it, in evaluation mode nothing does.
            latent: shape (d,); replaces the constrained latent (for diagnostics).
        """
        stages = []
        for block, potential in zip(self._blocks(), self.potentials(batch, latent), strict=True):
            stages.append(FlowStage(potential, None if block.actnorm is None else block.actnorm.normalization))
        flow = FlowMap(stages, self.inverse_tolerance)
        return flow.to(torch.float64) if self.precision_name == "float64" else flow

    def _blocks(self) -> list[FlowBlock]:
        return [block for block in self.network.children() if isinstance(block, FlowBlock)]

    def _at_precision(self, x: Tensor) -> Tensor:
        return x.double() if self.precision_name == "float64" else x

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        """Not for flows: a loss needs all blocks; see ``batch_loss``."""
        raise NotImplementedError(
            f"{type(self).__name__} has a loss of all its blocks at once: call batch_loss(batch)."
        )

    def batch_loss(self, batch: Tensor, latent: Tensor | None = None) -> Tensor:
        """The mean negative log-likelihood of the batch, nats, training units.

        Args:
            batch: data, shape (N, D).
            latent: shape (d,); replaces the constrained latent.
        """
        return -self._score(self.flow_map(batch, latent), batch).mean()

    def _score(self, flow: FlowMap, x: Tensor) -> Tensor:
        with torch.autocast(device_type=x.device.type, enabled=False):
            result = flow.estimate(self._at_precision(x), self.logdet)
            log_prob = standard_normal_log_prob(result.gradient) + result.logdet
        self._last = LogDetResult(*(part.detach() for part in result))
        return log_prob.to(x.dtype)

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """log N(f(x); 0, I) + log det Df(x) in training units under the weights of evaluation.

        Args:
            x: points in training units, shape (N, D).

        Returns:
            Shape (N,), nats.
        """
        check_points(x, self.dim)
        with self._evaluation_mode():
            return self._score(self.flow_map(), x)

    def map(self, x: Tensor) -> Tensor:
        """The noise that rows are mapped to, under the weights of evaluation; differentiable.

        Args:
            x: points in original units, shape (N, D).

        Returns:
            Shape (N, D): standard normal where the model is right.
        """
        return self._map_scaled(self.to_scaled(x))

    def inverse_map(self, y: Tensor) -> InverseResult:
        """The points that ``map`` takes to y, under the weights of evaluation, without gradient.

        Args:
            y: noise, shape (N, D).

        Returns:
            The points in original units; of each a convergence flag and its residual in units of the noise.
        """
        result = self._inverse_scaled(y)
        return result._replace(x=self.to_original(result.x))

    def _map_scaled(self, x: Tensor) -> Tensor:
        with self._evaluation_mode():
            return self.flow_map().map(self._at_precision(x)).to(x.dtype)

    @torch.no_grad()
    def _inverse_scaled(self, y: Tensor) -> InverseResult:
        with self._evaluation_mode():
            result = self.flow_map().inverse(self._at_precision(y))
        return result._replace(x=result.x.to(y.dtype), residual=result.residual.to(y.dtype))

    def convex_conjugate(self, y: Tensor) -> ConvexConjugate:
        """F*(y) = max over u of <u, y> - F(u), for a flow of one block, under the weights of evaluation.

        F is a function of training units, behind an ActNorm of the normalised points u = s(x). The gradient of F* is
        the inverse of grad F.

        Args:
            y: noise, shape (N, D).

        Returns:
            The values (N,), differentiable, with the maximisers u and whether they were found.

        Raises:
            ValueError: a flow of several blocks, whose map is the gradient of no convex function.
        """
        if self._num_blocks > 1:
            raise ValueError(
                f"this flow has num_blocks={self._num_blocks}: a composition of gradient maps is in general no "
                "gradient, so it has no convex conjugate. Ask a flow of one block, or each of potentials()."
            )
        with self._evaluation_mode():
            (stage,) = self.flow_map().stages
            return convex_conjugate(stage.potential, self._at_precision(y), tolerance=self.inverse_tolerance)

    # -- samples ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Independent draws in training units under the weights of evaluation: noise through the inverse map.

        Args:
            num_samples: how many, n.
            generator: of the noise, on the CPU.

        Returns:
            Shape (n, D).

        Raises:
            RuntimeError: points whose inverse is not found, in float64 either.
        """
        noise = torch.randn(num_samples, self.dim, generator=generator)
        return all_points(self._inverse_scaled(noise.to(next(self.parameters()))))

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> InverseResult:
        """Rows through the map and back.

        Args:
            x: points in original units, shape (N, D).

        Returns:
            What ``inverse_map`` gives at the images.
        """
        return self.inverse_map(self.map(x))

    @torch.no_grad()
    def interpolate(self, first: Tensor, last: Tensor, num_points: int) -> Tensor:
        """Points along the straight line between the images of two rows, mapped back.

        Args:
            first: where the paths start, in original units, shape (N, D).
            last: where they end, in original units, shape (N, D).
            num_points: points on each path, both ends among them.

        Returns:
            Shape (num_points, N, D), in original units.

        Raises:
            ValueError: shapes that differ, or fewer than two points.
            RuntimeError: points whose inverse is not found.
        """
        if first.shape != last.shape:
            raise ValueError(f"first has shape {tuple(first.shape)} and last {tuple(last.shape)}: give equal ones.")
        if num_points < 2:
            raise ValueError(f"num_points={num_points}: a path has at least its two ends.")
        start, end = self.map(first), self.map(last)
        steps = torch.linspace(0.0, 1.0, num_points).to(start).view(-1, 1, 1)
        path = torch.lerp(start.unsqueeze(0), end.unsqueeze(0), steps)
        return all_points(self.inverse_map(path.reshape(-1, self.dim))).view(path.shape)

    def frozen(self) -> FrozenFlow:
        """The density under the weights of evaluation, with ``log_prob(x)`` and ``sample(n)`` in original units."""
        return FrozenFlow(self.flow_map(), self.location, self.scale, self.logdet)

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
            self.start_actnorms(rows.to(self.device))

    def on_train_start(self) -> None:
        """Project, and look again whether an ActNorm waits for data: a learning-rate finder puts weights back."""
        super().on_train_start()
        self._started = self._asks_no_data()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Start the ActNorms where there are no calibration rows: from the first batch of all processes together."""
        super().on_train_batch_start(batch, batch_idx)
        if not self._started and isinstance(batch, Tensor):
            self.start_actnorms(torch.as_tensor(self.all_gather(batch)).reshape(-1, self.dim))

    @torch.no_grad()
    def start_actnorms(self, rows: Tensor) -> None:
        """Start the ActNorms, before and inside the networks, block after block; those started before stay.

        Args:
            rows: in training units, shape (N, D).
        """
        check_points(rows, self.dim)
        mode = self.parameterization.training
        self.parameterization.train()  # a lift has no reference summary yet
        potentials = self.potentials(rows)
        self.parameterization.train(mode)
        x = rows.to(next(self.parameters()).dtype)
        for block, potential in zip(self._blocks(), potentials, strict=True):
            x = block.initialize_(x, potential)
        self._started = True

    def _asks_no_data(self) -> bool:
        return all(block.is_initialized for block in self._blocks())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """The loss of this batch; with a stochastic log-determinant the residual of its conjugate gradients too."""
        loss = super().training_step(batch, batch_idx)
        if self.logdet.kind == "stochastic" and self.global_step % 10 == 0 and self._last is not None:
            residual = self._last.residual.max()
            self.log("train/cg_residual", residual, batch_size=len(batch), sync_dist=True, reduce_fx="max")
        return loss

    def begin_evaluation(self, stage: str) -> None:
        """Count the measured rows anew.

        Args:
            stage: ``val``, ``test`` or ``predict``.
        """
        self._measured = 0
        for name in self.test_figures:
            self._figure(name).reset()  # an interrupted evaluation leaves its own behind

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """Accumulate the likelihood of test rows, and measure the inverse on the first of them."""
        super().test_step(batch, batch_idx)
        if self.logdet.kind == "stochastic" and self._last is not None:
            self._figure("cg_residual").update(self._last.residual)
            self._figure("cg_failures").update((~self._last.converged).float())
            self._figure("logdet_standard_error").update(self._last.standard_error)
        share = -(-self.inverse_rows // self.trainer.world_size)
        rows = self.own_units(batch)[: max(0, share - self._measured)]
        if len(rows):
            self._measured += len(rows)
            self._measure(rows)

    def _measure(self, rows: Tensor) -> None:
        found = self._inverse_scaled(self._map_scaled(rows))
        error = (found.x - rows).norm(dim=1)
        self._figure("inverse_error").update(error)
        self._figure("inverse_error_mean").update(error)
        self._figure("inverse_failures").update((~found.converged).float())
        if self.logdet.kind == "exact":
            with self._evaluation_mode():
                condition = self.flow_map().hessian_condition(self._at_precision(rows))
            self._figure("hessian_condition").update(condition.to(rows.dtype))

    def on_test_epoch_end(self) -> None:
        """Log the likelihood, and what was measured of the inverse and of the log-determinant."""
        super().on_test_epoch_end()
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
