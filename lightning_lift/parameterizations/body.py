"""The lift's body: a permutation-invariant (DeepSets) code of a batch."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce as _all_reduce


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum over the processes, whose backward sums the gradients over the processes."""
    total: Tensor = _all_reduce(tensor)
    return total


def is_distributed() -> bool:
    """Whether there are several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def pooled_mean(features: Tensor) -> Tensor:
    """Mean over the rows of every process, with autograd through the communication.

    Pooling a rank's own shard only gives gradients that differ from one process on the joined batch; sums and counts
    are pooled instead. Collective: all ranks must call it together.

    Args:
        features: shape (N, F); N may differ between ranks.

    Returns:
        Shape (F,), the same on each rank.
    """
    total = features.sum(0)
    if not is_distributed():
        return total / features.shape[0]
    count = torch.tensor(float(features.shape[0]), device=features.device)
    dist.all_reduce(count)
    return all_reduce(total) / count


class DeepSetsBody(nn.Module):
    """An MLP applied to each row, ReLU after each layer; the code is the mean of its output over the batch.

    Zaheer et al., Deep Sets (NeurIPS 2017); widths 64, 64, 96 are those of arXiv 2605.24274.

    Args:
        dim: row length D.
        widths: width of each layer; the last is the length F of the code.

    Raises:
        ValueError: no layer, or a width below 1.
    """

    def __init__(self, dim: int, widths: Sequence[int]) -> None:
        super().__init__()
        check_widths(widths)
        layers: list[nn.Module] = []
        for fan_in, width in zip((dim, *widths[:-1]), widths, strict=True):
            layers += [nn.Linear(fan_in, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.code_size = widths[-1]

    def forward(self, rows: Tensor) -> Tensor:
        """Features of each row: (N, D) to (N, F). Not pooled yet."""
        features: Tensor = self.layers(rows)
        return features


def check_widths(widths: Sequence[int]) -> None:
    """Refuse widths that make no body.

    Args:
        widths: width of each layer.

    Raises:
        ValueError: no layer, or a width below 1.
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"body_widths={list(widths)}: give at least one layer of at least one unit.")


def standardize_code(code: Tensor) -> Tensor:
    """z <- (z - mean z) / (std z + 1e-5) over the F features of one code, shape (F,)."""
    return (code - code.mean()) / (code.std() + 1e-5)


@torch.no_grad()
def mean_features(body: nn.Module, batches: Iterable[Tensor]) -> Tensor:
    """Mean of the features of all rows, shape (F,), float32 on the CPU.

    Args:
        body: maps (N, D) to (N, F).
        batches: tensors of shape (N, D), together the rows.

    Raises:
        ValueError: no rows, or rows that are not finite.
    """
    parameter = next(body.parameters())
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        if not torch.isfinite(batch).all():
            raise ValueError("calibration rows hold NaN or infinite numbers; clean the training split first.")
        features: Tensor = body(batch.to(parameter))
        # Summed in float64 on the CPU: not every device has float64.
        total = total + features.sum(0).cpu().double()
        count += batch.shape[0]
    if not count:
        raise ValueError("calibration got no rows; pass batches of the training split.")
    # A plain clone, also under inference mode, so that a later fit can use it in autograd.
    with torch.inference_mode(False):
        return (total / count).float().clone()


def body_fingerprint(body: nn.Module) -> int:
    """A 63-bit hash of a body's weights, the same on every device and after a float32 round trip."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in body.state_dict().values():
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest(), "big") >> 1
