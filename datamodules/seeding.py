"""Seeds of the random streams of a data module: one number a purpose, one generator a position."""

from typing import Literal

import numpy as np
import torch

Purpose = Literal["train", "val", "test", "calibration", "probe", "split"]
_PURPOSES: tuple[Purpose, ...] = ("train", "val", "test", "calibration", "probe", "split")
_SEED_SPACE = 2**32


def stream_seed(data_seed: int, purpose: Purpose, *more: int) -> int:
    """Return the base seed of one random stream.

    Args:
        data_seed: The seed of the data module, a nonnegative integer.
        purpose: What the numbers are for; two purposes share no numbers.
        *more: Further nonnegative integers that tell streams of one purpose apart.

    Returns:
        A base seed in [0, 2^32).
    """
    entropy = [data_seed, _PURPOSES.index(purpose), *more]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def generator_at(base: int, position: int) -> torch.Generator:
    """Return the CPU generator of one position in a stream, without making the positions before it.

    PyTorch's Mersenne Twister keeps only the low 32 bits of its seed. Hashing positions into 32 bits would repeat a
    batch within about 10^5 of them (birthday bound), so consecutive positions get consecutive seeds: no two of the
    first 2^32 positions of a stream are equal.

    Args:
        base: Base seed of the stream, from :func:`stream_seed`.
        position: Position in the stream, 0, 1, ...

    Returns:
        A fresh generator.
    """
    return torch.Generator().manual_seed((base + position) % _SEED_SPACE)


def check_data_seed(data_seed: int) -> None:
    """Refuse a seed that no stream can be made of.

    Args:
        data_seed: The value to check.

    Raises:
        ValueError: If it is not a nonnegative integer.
    """
    if isinstance(data_seed, bool) or not isinstance(data_seed, int) or data_seed < 0:
        raise ValueError(f"data_seed must be a nonnegative integer, got {data_seed!r}")
