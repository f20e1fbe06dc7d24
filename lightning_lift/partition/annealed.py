"""log Z for evaluation by annealed importance sampling, between bounds from both directions."""

import math
import warnings
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from lightning_lift.partition.annealing import Path, backwards, forwards, plan
from lightning_lift.partition.base import EstimateMemory, PartitionEstimate, stored
from lightning_lift.partition.chain_partition import ChainPartition
from lightning_lift.partition.chains import HAMILTONIAN_ACCEPTANCE, Ensemble, adapted, quarter_turn, step
from lightning_lift.partition.importance_weights import log_mean, systematic
from lightning_lift.partition.pilot import find_start
from lightning_lift.potential import Potential

_WIDEST = 0.1  # nats between the bounds beyond which an estimate is not to be trusted
_SETTLING = 20  # Hamiltonian steps at the density between the two directions
_BAR_DELAY = 5.0  # seconds after which a progress bar appears


class AnnealedImportanceSampling(ChainPartition):
    """Annealed importance sampling from the best Gaussian that the mode and a pilot run suggest. Evaluation only.

    Chains go from that Gaussian to the density through intermediate ones, and their weights average to Z without bias
    (Neal, 2001): the estimate, in expectation a lower bound of log Z. For a quadratic energy the Gaussian is exact, and
    so is log Z. Draws of the density then go the same way back and give an upper bound, as far as they are draws of the
    density (Grosse et al., 2015). Every evaluation uses the same random numbers.

    Its figures: ``log_partition_standard_error`` (nats), ``effective_sample_size`` (of ``num_chains``),
    ``log_partition_upper`` (nats) with ``log_partition_upper_standard_error`` (nats), ``bracket_width`` (upper bound
    minus estimate, nats), ``log_partition_trusted`` (1 or 0), and ``laplace_start`` (1 where the Gaussian is the one of
    the Hessian). Both bounds hold in expectation: each is as often on the wrong side of log Z as its standard error
    lets it, and the width may be below 0. Without ``bracket`` there are no upper bound and no width. An estimate whose
    bracket is wider than 0.1 nats, in either sense, or that has a standard error above 0.05, is not to be trusted, and
    a warning says so (in validation once).

    Args:
        num_chains: chains of each direction.
        num_temperatures: increments between the Gaussian and the density in test and predict.
        validation_temperatures: the same in validation, where only the forward direction is run.
        num_leapfrog: leapfrog steps of the one transition at each temperature; 1 for Langevin steps.
        bracket: whether to go backwards too.
        seed: of its random numbers.

    Raises:
        ValueError: a number below its least.
    """

    def __init__(
        self,
        num_chains: int = 512,
        num_temperatures: int = 400,
        validation_temperatures: int = 100,
        num_leapfrog: int = 1,
        bracket: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, number, least in (
            ("num_chains", num_chains, 16),
            ("num_temperatures", num_temperatures, 1),
            ("validation_temperatures", validation_temperatures, 1),
            ("num_leapfrog", num_leapfrog, 1),
        ):
            if number < least:
                raise ValueError(f"{name}={number}: give at least {least}.")
        self.num_chains = num_chains
        self.num_temperatures = num_temperatures
        self.validation_temperatures = validation_temperatures
        self.num_leapfrog = num_leapfrog
        self.bracket = bracket
        self.seed = seed
        self._memory = EstimateMemory()
        self._warned_quickly = False

    def prepare(self, support: Tensor, window: Tensor | None) -> None:
        """Set the support, and where the search of the mode starts.

        Args:
            support: low and high row, shape (2, D), infinite where open.
            window: a finite box that holds most of the data, or None.
        """
        super().prepare(support, window)
        self._memory.clear()

    def forward(self, potential: Potential) -> Tensor:
        """Refuse: there is no gradient to give.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "AnnealedImportanceSampling evaluates and gives no gradient: train with partition Langevin, FlowImportance "
            "or (one or two dimensions) Quadrature, and name AnnealedImportanceSampling as the model's evaluation."
        )

    def evaluate(self, potential: Potential) -> PartitionEstimate:
        """log Z with the bracket: what test, predict and freeze use."""
        return self._evaluate(potential, careful=True)

    def evaluate_quickly(self, potential: Potential) -> PartitionEstimate:
        """log Z with fewer temperatures and no upper bound: what validation uses."""
        return self._evaluate(potential, careful=False)

    @torch.no_grad()
    def _evaluate(self, potential: Potential, careful: bool) -> PartitionEstimate:
        known = self._memory.recall(careful, potential)
        if known is not None:
            return known
        return self._memory.keep(careful, potential, self._annealed(potential, careful))

    def _annealed(self, potential: Potential, careful: bool) -> PartitionEstimate:
        target, guess = self.problem(potential)
        if not bool(torch.isfinite(target(guess.unsqueeze(0))[0])):
            return PartitionEstimate(torch.full((), math.nan).to(target.like), {"log_partition_trusted": 0.0})
        generator = torch.Generator().manual_seed(self.seed)
        start = find_start(target, guess, min(self.num_chains, 512), generator)
        num_temperatures = self.num_temperatures if careful else self.validation_temperatures
        path = plan(start.target, start, num_temperatures, self.num_leapfrog, generator)
        both = careful and self.bracket
        with _bar(num_temperatures * (2 if both else 1)) as bar:
            stages = range(1, num_temperatures + 1)
            log_weights, chains = forwards(path, self.num_chains, generator, _ticking(stages, bar))
            value, error, size = log_mean(log_weights)
            figures = {
                "log_partition_standard_error": error,
                "effective_sample_size": size,
                "laplace_start": float(start.is_laplace),
            }
            trusted = error <= 0.5 * _WIDEST
            if both:
                chains = chains[systematic(log_weights, len(log_weights), generator)]
                chains = _settled(path, chains, start.step_size, generator)
                inverse, error, _ = log_mean(backwards(path, chains, generator, _ticking(reversed(stages), bar)))
                figures["log_partition_upper"] = -inverse
                figures["log_partition_upper_standard_error"] = error
                figures["bracket_width"] = -inverse - value
                trusted = trusted and error <= 0.5 * _WIDEST and abs(figures["bracket_width"]) <= _WIDEST
        figures["log_partition_trusted"] = float(trusted)
        if not trusted and (careful or not self._warned_quickly):  # in validation once, not at each of them
            self._warned_quickly = self._warned_quickly or not careful
            _warn(value, figures)
        return PartitionEstimate(stored(value, potential), figures)


class AnnealedImportance(AnnealedImportanceSampling):
    """The former name of ``AnnealedImportanceSampling``, for checkpoints and configurations that use it."""


def _settled(path: Path, chains: Ensemble, step_size: float, generator: torch.Generator) -> Ensemble:
    for _ in range(_SETTLING):
        chains, acceptance = step(path.target, chains, step_size, path.factor, generator, quarter_turn(step_size))
        step_size = adapted(step_size, acceptance, HAMILTONIAN_ACCEPTANCE, gain=0.3)
    return chains


def _ticking(stages: Iterable[int], bar: "tqdm[int]") -> Iterator[int]:
    for stage in stages:
        yield stage
        bar.update()


def _bar(total: int) -> "tqdm[int]":
    """A progress bar on rank 0's screen, once an evaluation has taken some seconds."""
    silent = True if dist.is_initialized() and dist.get_rank() else None  # None: silent where there is no screen
    return tqdm(total=total, desc="log Z", delay=_BAR_DELAY, leave=False, disable=silent)


def _warn(value: float, figures: dict[str, float]) -> None:
    width, upper_error = figures.get("bracket_width"), figures.get("log_partition_upper_standard_error")
    bounds = "" if width is None else f", and the bracket is {width:.3f} nats wide (+- {upper_error:.3f})"
    warnings.warn(
        f"log Z = {value:.3f} is not to be trusted: its standard error is "
        f"{figures['log_partition_standard_error']:.3f} nats at an effective sample size of "
        f"{figures['effective_sample_size']:.0f}{bounds}; raise num_temperatures or num_chains of "
        "AnnealedImportanceSampling.",
        stacklevel=2,
    )
