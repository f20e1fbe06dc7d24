"""The control "direct, widened to the lift's parameter count": one factor on all widths of a network."""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

_TRIES = 20


def matched_widths(
    config: Mapping[str, Any], target: Mapping[str, Any], count: Callable[[Mapping[str, Any]], int]
) -> list[int]:
    """Widths of a network with which a module trains as many numbers as another one does, as nearly as they can.

    All widths are multiplied by one factor and rounded. The number of parameters grows about as the factor's square, so
    its root is interpolated; a handful of networks is built.

    Args:
        config: settings whose ``model.init_args.network.init_args.widths`` are to be scaled.
        target: settings of the module whose number is matched.
        count: number of trained parameters of a module, from its settings.

    Raises:
        ValueError: there are no widths.
    """
    own = config["model"]["init_args"]["network"]["init_args"].get("widths")
    if not own:
        raise ValueError(f"match_parameters scales the widths of the network, and they are {own!r}: state them.")
    wanted = count(target)
    counts: dict[tuple[int, ...], int] = {}

    @functools.cache
    def excess(factor: float) -> float:
        widths = tuple(max(1, round(factor * width)) for width in own)
        if widths not in counts:
            counts[widths] = count(_with_widths(config, widths))
        return math.sqrt(counts[widths]) - math.sqrt(wanted)

    low, high = 0.0, max(1.0, math.sqrt(wanted / max(1, count(config))))
    while excess(high) < 0.0:
        # A network of one layer grows with the factor itself, any other one is nearly there.
        low, high = high, high * max(1.1, wanted / (excess(high) + math.sqrt(wanted)) ** 2)
    for _ in range(_TRIES):
        if (high - low) * max(own) < 0.5:  # the widths of both ends are neighbours
            break
        # Kept off the ends: interpolation alone can leave one of them where it is.
        below = excess(low) if low > 0.0 else -math.sqrt(wanted)
        middle = low + (high - low) * min(0.95, max(0.05, -below / (excess(high) - below)))
        if excess(middle) < 0.0:
            low = middle
        else:
            high = middle
    nearest = min(counts.items(), key=lambda item: abs(item[1] - wanted))
    return list(nearest[0])


def _with_widths(config: Mapping[str, Any], widths: tuple[int, ...]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    changed["model"]["init_args"]["network"]["init_args"]["widths"] = list(widths)
    return changed
