"""The convex potential that flows take by default."""

import math
from collections.abc import Sequence
from typing import Literal

from lightning_lift.networks.icnn import ICNN
from lightning_lift.networks.initialization import WeightInit


class FlowICNN(ICNN):
    """``ICNN`` with the Gaussian softplus, the default of flows.

    The second derivative of ``gaussian_softplus`` is a normal density: it falls off faster than that of ``softplus``,
    so a log-determinant can change over a shorter distance. The signature repeats ``ICNN``'s, because a checkpoint
    keeps the defaults that it names.

    Args:
        dim: input dimension D.
        widths: units of each hidden layer, first to last.
        strong_convexity: as for ``ICNN``.
        divide_by_fan_in: as for ``ICNN``.
        weight_init: as for ``ICNN``.
        weight_init_value: as for ``ICNN``.
        free_weight_std: as for ``ICNN``.
        bias_std: as for ``ICNN``.
        actnorm: as for ``ICNN``.

    Shapes: forward maps (N, D) to (N,).
    """

    def __init__(
        self,
        dim: int,
        widths: Sequence[int] = (64, 64, 64),
        strong_convexity: float | Literal["learned", "learned_gain"] = "learned_gain",
        divide_by_fan_in: bool = True,
        weight_init: WeightInit = "scaled",
        weight_init_value: float = math.log(2.0),
        free_weight_std: float | None = None,
        bias_std: float | None = None,
        actnorm: bool = False,
    ) -> None:
        # no `activation`: the command line's parser would hand the default's on to an ICNN that replaces it
        start = (divide_by_fan_in, weight_init, weight_init_value, free_weight_std, bias_std)
        super().__init__(dim, widths, "gaussian_softplus", strong_convexity, *start, actnorm)
