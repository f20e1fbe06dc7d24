"""Rows for a lift's reference summary where a fit has data loaders alone."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

_WHOLE = (SequentialSampler, RandomSampler)  # samplers that serve all of a data set


class TrainingPass:
    """The training set of a ``DataLoader`` in its own order: all rows, and the same ones each time.

    No generator is shared with training: what a data set draws while it is read comes from a fixed seed, and the global
    random states are put back.

    Args:
        loader: of the training data; it is not iterated itself.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        order: Any = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
        if isinstance(batches, BatchSampler):
            order = BatchSampler(order, batches.batch_size, drop_last=False)
        settings: dict[str, Any] = {"collate_fn": loader.collate_fn, "generator": torch.Generator()}
        if loader.batch_sampler is None:
            self._loader = DataLoader(loader.dataset, batch_size=None, sampler=order, **settings)
        else:
            self._loader = DataLoader(loader.dataset, batch_sampler=order, **settings)

    def __iter__(self) -> Iterator[Any]:
        """Serve the batches."""
        with isolate_rng():
            for seed in (torch.manual_seed, np.random.seed, random.seed, self._loader.generator.manual_seed):
                seed(0)
            yield from self._loader


def training_pass(trainer: L.Trainer) -> Iterable[Any] | None:
    """The training rows of a fit on data loaders; None where a pass over them would not be all rows, each once.

    That is a ``DataLoader`` of a data set with a length, shuffled as a whole or in order. A sampler of a subset may
    keep out rows that are validated on, one with weights has another distribution, a stream cannot be read twice.

    Args:
        trainer: of the fit.
    """
    if trainer.state.fn != "fit":
        return None
    loader = trainer.fit_loop._data_source.dataloader()  # a loader itself, or what a module's train_dataloader() makes
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    rows = batches.sampler if type(batches) is BatchSampler else batches
    if type(rows) not in _WHOLE:
        return None
    return TrainingPass(loader)
