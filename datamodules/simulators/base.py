"""Pairs of parameters and data from a prior and a simulator: what posteriors are learnt from."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lightning_lift.datamodules.array_cache import cached, fingerprint
from lightning_lift.datamodules.batches import Batch
from lightning_lift.datamodules.in_memory import check_counts, check_fractions
from lightning_lift.datamodules.parts import PartsDataModule, units_of_context
from lightning_lift.datamodules.seeding import generator_at, stream_seed

Prior = Callable[[int, torch.Generator], Tensor]
"""``prior(num_rows, generator) -> (num_rows, D)``: independent parameters made from the generator alone."""

Simulator = Callable[[Tensor, torch.Generator], Tensor]
"""``simulator(parameters (N, D), generator) -> (N, ...)``: data of each row, noise made from the generator alone."""

_PROBES = 4  # simulations at construction, which tell shapes, and one simulator from another
_SPLITS = ("train", "val", "test")


class SimulatorDataModule(PartsDataModule):
    """Simulations of a prior and a simulator: ``x`` are the parameters, ``context`` the data that they gave.

    A conditional model of x given context is the posterior, for whatever data are observed later. The simulations are
    made once, from ``data_seed``, and held in memory; ``cache_folder`` keeps them on disk, under a fingerprint of seed,
    numbers and the first few simulations, so that another simulator is simulated anew. Both parts are served with mean
    0 and standard deviation 1 (``units``, ``field_units``), and data that are a vector with the unit covariance: what
    tells parameters apart may be small beside what all the data have in common. Parameters stay as they are where the
    prior has bounds (``support``): a model leaks beyond them, and its draws there are to be rejected, which keeps the
    density inside right up to one factor, the fraction kept.

    Subclass requirements: ``__init__`` calls ``super().__init__`` with a prior and a simulator, then
    ``self.save_hyperparameters()``; whichever of ``log_prior``, ``log_likelihood``, ``log_posterior`` and
    ``reference_draws`` is known. What these methods take and give is in original units.

    Args:
        prior: Import path, or function in Python, ``prior(num_rows, generator) -> (num_rows, D)``.
        simulator: Import path, or function in Python, ``simulator(parameters, generator) -> (num_rows, ...)``.
        bounds: Lowest and highest values of the D parameters under the prior, (2, D). None where it has none.
        num_simulations: Simulations to learn from, those for validation among them.
        val_fraction: Fraction of them for validation and early stopping.
        num_test: Further simulations, for the test.
        batch_size: Simulations of one process's training batch.
        cache_folder: Where to keep the simulations. None for nowhere.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Simulations of one process's batch in evaluation. None for the larger of ``batch_size`` and
            1024.

    Raises:
        ValueError: If an argument is out of range, or prior and simulator do not give rows.
    """

    def __init__(
        self,
        prior: Prior,
        simulator: Simulator,
        bounds: Sequence[Sequence[float]] | None = None,
        num_simulations: int = 10_000,
        val_fraction: float = 0.1,
        num_test: int = 1_000,
        batch_size: int = 256,
        cache_folder: str | None = None,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        check_counts(num_simulations=num_simulations, num_test=num_test)
        check_fractions(val_fraction=val_fraction)
        self._prior, self._simulator = prior, simulator
        x, context = self._pairs(_PROBES, generator_at(stream_seed(data_seed, "probe"), 0))
        self._probe = [f"{value:.4g}" for part in (x, context) for value in part.double().flatten().tolist()]
        super().__init__(
            dim=x.shape[1],
            name=getattr(simulator, "__name__", type(simulator).__name__),
            batch_size=batch_size,
            context_shape=context.shape[1:],
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        ends = torch.tensor([[-torch.inf], [torch.inf]]) if bounds is None else torch.tensor(bounds)
        if ends.shape not in ((2, 1), (2, self.dim)) or not bool((ends[0] < ends[1]).all()):
            raise ValueError(f"bounds must be (2, {self.dim}), lowest values and highest ones, got {bounds}.")
        self.bounds = ends.double().expand(2, self.dim)
        num_val = max(1, int(val_fraction * num_simulations))
        self._counts = num_simulations - num_val, num_val, num_test
        if self._counts[0] < batch_size:
            raise ValueError(
                f"{num_simulations} simulations leave {self._counts[0]} for training, fewer than batch_size "
                f"{batch_size}: lower it, or simulate more."
            )
        self._cache_folder = cache_folder
        self._standardization = None  # known when the training simulations are
        if type(self) is SimulatorDataModule:  # functions are code: a checkpoint does not name them
            self.save_hyperparameters(ignore=["prior", "simulator"])

    # -- the task -----------------------------------------------------------------------------------------------------

    def simulations(self, num_rows: int, generator: torch.Generator) -> Batch:
        """Draw parameters and simulate their data.

        Args:
            num_rows: How many.
            generator: The CPU generator to use.

        Returns:
            ``x`` (num_rows, D) and ``context`` (num_rows, ...), in original units.

        Raises:
            ValueError: If prior or simulator give something else.
        """
        return Batch(*self._pairs(num_rows, generator))

    def simulate(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Simulate the data of given parameters.

        Args:
            x: Parameters (N, D).
            generator: The CPU generator to use.

        Returns:
            Data (N, ...).

        Raises:
            ValueError: If the simulator gives something else.
        """
        data = self._simulator(x, generator)
        if not isinstance(data, Tensor) or data.ndim < 2 or len(data) != len(x):
            raise ValueError(
                f"the simulator must give the data of each row, a tensor ({len(x)}, ...) of two dimensions or more, "
                f"got {_described(data)} for parameters {tuple(x.shape)}."
            )
        return data

    def log_prior(self, x: Tensor) -> Tensor:
        """Log-density of the prior, -inf outside its bounds: parameters (N, D) to (N,)."""
        raise NotImplementedError(f"the prior density of {self.name!r} is not known")

    def log_likelihood(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of data (N, ...), or (1, ...) for all rows, given parameters (N, D): (N,)."""
        raise NotImplementedError(f"the likelihood of {self.name!r} is not known")

    def log_posterior(self, x: Tensor, context: Tensor) -> Tensor:
        """Log-density of parameters (N, D) given data (N, ...), or (1, ...) for all rows: (N,)."""
        raise NotImplementedError(f"the normalised posterior of {self.name!r} is not known")

    def reference_draws(self, context: Tensor, num_draws: int, seed: int) -> Tensor | None:
        """Draw from the exact posterior.

        Args:
            context: The data of one observation, without a leading dimension.
            num_draws: How many.
            seed: Of the draws.

        Returns:
            Parameters (num_draws, D); None where the posterior cannot be drawn from.
        """
        return None

    def inside(self, x: Tensor) -> Tensor:
        """Whether parameters (N, D) are within the bounds of the prior: (N,)."""
        return ((x >= self.bounds[0].to(x)) & (x <= self.bounds[1].to(x))).all(dim=1)

    # -- the data module ----------------------------------------------------------------------------------------------

    @property
    def support(self) -> Tensor:
        """Bounds (2, D) of the prior, infinite where open, in training units."""
        return self.units.apply(self.bounds).to(torch.float32)

    def load(self) -> dict[str, Batch]:
        """Make the splits, each from a generator of its own, and bring both parts into training units.

        Returns:
            The splits ``train``, ``val`` and ``test``.
        """
        mark = fingerprint((), self._probe, self._counts, self.data_seed)
        keys = [f"{split}-{part}" for split in _SPLITS for part in ("x", "context")]
        arrays = cached(self._cache_folder, self.name, mark, keys, self._simulated)
        for key, values in arrays.items():
            bad = (~np.isfinite(values)).reshape(len(values), -1).any(axis=1).sum()
            if bad:
                raise ValueError(
                    f"{self.name}: {key} of {bad} of {len(values)} simulations is not finite: draw again in the prior "
                    "or the simulator what cannot be simulated."
                )
        contexts = {split: torch.from_numpy(arrays[f"{split}-context"]) for split in _SPLITS}
        splits = {split: Batch(torch.from_numpy(arrays[f"{split}-x"]), contexts[split]) for split in _SPLITS}
        units = units_of_context(contexts["train"])
        splits = self.standardize(splits, ("x",))
        self.field_units = {"context": units}
        return {split: rows._replace(context=units.apply(contexts[split])) for split, rows in splits.items()}

    def _simulated(self) -> dict[str, object]:
        arrays: dict[str, object] = {}
        for index, (split, count) in enumerate(zip(_SPLITS, self._counts, strict=True)):
            rows = self._pairs(count, generator_at(stream_seed(self.data_seed, "split", index), 0))
            for part, values in zip(("x", "context"), rows, strict=True):
                arrays[f"{split}-{part}"] = values.detach().cpu().numpy()
        return arrays

    def _pairs(self, num_rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = self._prior(num_rows, generator)
        if not isinstance(x, Tensor) or x.ndim != 2 or len(x) != num_rows:
            raise ValueError(f"the prior must give {num_rows} rows, a tensor ({num_rows}, D), got {_described(x)}.")
        return x, self.simulate(x, generator)


def _described(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
