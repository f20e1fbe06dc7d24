"""Mean first-passage times of a one-dimensional escape problem: by quadrature, by Laplace's method, by simulation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightning_lift.diagnostics.escape_problems import EscapeProblem

_NODES = 16
_MOST_PANELS = 50_000
# Of dt * max|U''|, and of sqrt(s2 dt) over the distance of start and absorbing end.
_DRIFT_FRACTION = 0.4
_NOISE_FRACTION = 0.1
_COMPACT_EVERY = 32
_NEAR = 15.0  # farther from an end, in units of s2 dt, a bridge touches it with a probability below e^-30


def log_mean_exit_time(problem: EscapeProblem, s2: float) -> float:
    r"""Logarithm of the closed form T(x) = (2/s2) int_x^b e^{2U(y)/s2} int_a^y e^{-2U(z)/s2} dz dy.

    It solves (s2/2) T'' - U' T' = -1 with T'(a) = 0 and T(b) = 0 (Gardiner, Handbook of Stochastic Methods, section
    5.2.7). Gauss-Legendre panels in which 2U/s2 varies by about 4, summed in log space with positive terms only, so
    that neither a large exponent nor cancellation can spoil it.

    Args:
        problem: potential, start x, ends a and b.
        s2: noise variance per unit of time.

    Returns:
        log T(start).

    Raises:
        ValueError: s2 that is not positive, or too small for the panels.
    """
    _check_noise(s2)
    num_panels = max(64, math.ceil(problem.variation / (2.0 * s2)))
    if num_panels > _MOST_PANELS:
        raise ValueError(
            f"s2={s2:g} is {problem.barrier / s2:.3g} times below the barrier, too small for quadrature: read "
            "log_laplace_exit_time there."
        )
    nodes, node_weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(_NODES))
    unit, log_weights = (nodes + 1.0) / 2.0, (node_weights / 2.0).log()
    # The start is an edge of a panel: the outer integral begins there.
    a, x, b = problem.reflecting, problem.start, problem.absorbing
    before = 0 if x <= a else max(8, round(num_panels * (x - a) / (b - a)))
    first = torch.linspace(a, x, before + 1, dtype=torch.float64)
    edges = torch.cat([first[:-1], torch.linspace(x, b, max(8, num_panels - before) + 1, dtype=torch.float64)])
    left, width = edges[:-1, None], edges.diff()[:, None]

    points = left + width * unit
    log_panels = torch.logsumexp(-2.0 / s2 * problem.value(points) + log_weights + width.log(), 1)
    log_before = torch.cat([log_panels.new_full((1,), -math.inf), log_panels.logcumsumexp(0)[:-1]])
    outer, outer_left, outer_width = points[before:], left[before:], width[before:]
    part = (outer_width * unit)[..., None]  # from the panel's left edge to each node
    inside = -2.0 / s2 * problem.value(outer_left[..., None] + part * unit) + log_weights + part.log()
    log_inner = torch.logaddexp(torch.logsumexp(inside, 2), log_before[before:, None])
    terms = 2.0 / s2 * problem.value(outer) + log_inner + log_weights + outer_width.log()
    return float(math.log(2.0 / s2) + torch.logsumexp(terms.flatten(), 0))


def log_laplace_exit_time(problem: EscapeProblem, s2: float) -> float:
    r"""Logarithm of the Kramers asymptote, with its prefactor: both integrals of the closed form by Laplace's method.

    T ~ (2/s2) w(bottom) w(top) e^{2 alpha/s2}, where w is sqrt(pi s2/|U''|) at an interior extremum and s2/(2|U'|) at
    an end towards which U falls or rises. With both interior this is Kramers' 2 pi/sqrt(U''(bottom) |U''(top)|)
    e^{2 alpha/s2} (Kramers, Physica 7, 1940).

    Args:
        problem: the problem.
        s2: noise variance per unit of time.

    Raises:
        ValueError: s2 that is not positive.
    """
    _check_noise(s2)
    widths = _log_width(problem, problem.bottom, s2) + _log_width(problem, problem.top, s2)
    return math.log(2.0 / s2) + widths + 2.0 * problem.barrier / s2


def _log_width(problem: EscapeProblem, point: float, s2: float) -> float:
    if point in (problem.reflecting, problem.absorbing):
        return math.log(s2 / (2.0 * abs(problem.slope_at(point))))
    return 0.5 * math.log(math.pi * s2 / abs(problem.curvature_at(point)))


def exit_slope(problem: EscapeProblem, s2: float, log_time: Callable[[EscapeProblem, float], float]) -> float:
    """Slope of log E[tau] against 1/s2, which tends to 2 alpha as s2 goes to 0; a central difference.

    A prefactor s2^p adds -p s2: with alpha = 1 and p = 1 the slope is within 5 % of 2 alpha only below s2 = 0.1.

    Args:
        problem: the problem.
        s2: noise variance at which the slope is read.
        log_time: ``log_mean_exit_time`` or ``log_laplace_exit_time``.
    """
    step = 1e-3 / s2
    high, low = (log_time(problem, 1.0 / (1.0 / s2 + sign * step)) for sign in (1.0, -1.0))
    return (high - low) / (2.0 * step)


def time_step(problem: EscapeProblem, s2: float) -> float:
    """The simulation's step: the smaller of two, so that drift and noise are both resolved.

    0.4 / max |U''|: within the shortest time scale of the drift (the scheme's error is of second order in it).
    (0.1 (b - start))^2 / s2: the noise of one step is a tenth of the way.

    Args:
        problem: the problem.
        s2: noise variance per unit of time.

    Raises:
        ValueError: s2 that is not positive.
    """
    _check_noise(s2)
    stiffness = problem.stiffness
    by_noise = (_NOISE_FRACTION * (problem.absorbing - problem.start)) ** 2 / s2
    return min(_DRIFT_FRACTION / stiffness, by_noise) if stiffness > 0.0 else by_noise


@dataclass(frozen=True)
class FirstPassage:
    """What the simulation gave at one noise level.

    Attributes:
        s2: noise variance per unit of time.
        mean: of the first-passage time. Without censored paths the sample mean; with some, the time spent by all
            paths over the number of exits (the maximum-likelihood mean of an exponential law, which exit times are
            only approximately).
        standard_error: of ``mean``.
        num_paths: simulated.
        num_censored: of those, not out at ``max_time``.
        max_time: at which a path was given up.
        time_step: of the simulation.
    """

    s2: float
    mean: float
    standard_error: float
    num_paths: int
    num_censored: int
    max_time: float
    time_step: float


@torch.no_grad()
def simulate_first_passage(
    problem: EscapeProblem,
    s2: Sequence[float],
    num_paths: int = 10_000,
    seed: int = 0,
    max_times: Sequence[float] | None = None,
    time_steps: Sequence[float] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[FirstPassage]:
    """Simulate all paths of all noise levels in one batch, float64, from a generator of its own.

    Each step is the weak second-order scheme for additive noise (Kloeden & Platen, Numerical Solution of Stochastic
    Differential Equations, 1992, section 15.1): the drift is averaged over the step's ends. Between two points of a
    path both ends of the interval are treated exactly for a constant drift: a crossing of b by its Brownian-bridge
    probability exp(-2 (b - w) (b - w') / (s2 dt)), and the reflection at a by the bridge's minimum (Lepingle, Math.
    Comput. Simulation 38, 1995). An exit is dated at the middle of its step.

    Args:
        problem: the problem.
        s2: K noise variances.
        num_paths: paths a level.
        seed: of the generator.
        max_times: K times at which paths are given up; None for 20 mean exit times by the closed form, which one path
            in e^20 outlives.
        time_steps: K steps; None for ``time_step``.
        progress: called with the number of paths that ended since the last call.

    Returns:
        One result a level, in the order of ``s2``.

    Raises:
        ValueError: a noise that is not positive, fewer than two paths, or a time or step that is not positive.
    """
    if num_paths < 2:
        raise ValueError(f"num_paths={num_paths}: a standard error needs at least 2; 10,000 give 1 % of the mean.")
    steps = [time_step(problem, level) for level in s2] if time_steps is None else list(time_steps)
    if max_times is None:
        max_times = [20.0 * math.exp(log_mean_exit_time(problem, level)) for level in s2]
    for name, values in (("max_times", max_times), ("time_steps", steps)):
        if len(values) != len(s2) or not all(0.0 < value < math.inf for value in values):
            raise ValueError(f"{name}={list(values)}: give one positive number for each of the {len(s2)} noise levels.")
    times, exited = _run(problem, s2, steps, max_times, num_paths, seed, progress)
    results = []
    for level, step, limit, time, out in zip(s2, steps, max_times, times, exited, strict=True):
        num_exits = int(out.sum())
        if num_exits == num_paths:
            mean, error = float(time.mean()), float(time.std()) / math.sqrt(num_paths)
        else:
            mean = float(time.sum()) / num_exits if num_exits else math.inf
            error = mean / math.sqrt(num_exits) if num_exits else math.inf
        results.append(FirstPassage(level, mean, error, num_paths, num_paths - num_exits, limit, step))
    return results


def _run(
    problem: EscapeProblem,
    s2: Sequence[float],
    steps: Sequence[float],
    max_times: Sequence[float],
    num_paths: int,
    seed: int,
    progress: Callable[[int], None] | None,
) -> tuple[Tensor, Tensor]:
    """Times (K, num_paths) and whether each path was out by then."""
    generator = torch.Generator().manual_seed(seed)
    a, b = problem.reflecting, problem.absorbing

    def per_path(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(num_paths)

    dt = per_path(steps)
    variance = per_path(s2) * dt
    last_step = (per_path(max_times) / dt).ceil()
    noise = variance.sqrt()
    position = torch.full_like(dt, problem.start)
    index = torch.arange(len(dt))  # where a path still under way stands among all
    exit_step = torch.full_like(dt, -1.0)  # of the paths under way; -1 before the exit
    times = (last_step * dt).clone()
    exited = torch.zeros(len(dt), dtype=torch.bool)
    done = 0
    while len(index):
        for _ in range(_COMPACT_EVERY):
            done += 1
            drift = problem.gradient(position)
            jump = torch.empty_like(position).normal_(generator=generator).mul_(noise)
            ahead = position - drift * dt + jump
            # The predictor may overshoot an end, behind which the potential means nothing.
            drift = (drift + problem.gradient(ahead.clamp(a, b))).mul_(0.5)
            ahead = position - drift * dt + jump
            crossed = _crossed(position, ahead, b, variance, generator)
            exit_step[crossed[exit_step[crossed] < 0.0]] = done - 0.5
            position = _reflected(position, ahead, a, variance, generator).clamp_(max=b)
        out = (exit_step >= 0.0) & (exit_step < last_step)
        ended = out | (done >= last_step)
        if bool(ended.any()):
            gone = index[out]
            times[gone] = exit_step[out] * dt[out]
            exited[gone] = True
            stay = (~ended).nonzero().flatten()
            if progress is not None:
                progress(len(index) - len(stay))
            dt, variance, noise, last_step, position, index, exit_step = (
                tensor[stay] for tensor in (dt, variance, noise, last_step, position, index, exit_step)
            )
    return times.view(len(s2), num_paths), exited.view(len(s2), num_paths)


def _crossed(position: Tensor, ahead: Tensor, b: float, variance: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of the paths that reached b between the two points; also where the bridge came back."""
    near = ((b - position) * (b - ahead) < _NEAR * variance).nonzero().flatten()
    exponent = -2.0 * (b - position[near]) * (b - ahead[near]) / variance[near]
    chance = torch.rand(len(near), dtype=torch.float64, generator=generator)
    return near[chance.log() < exponent]  # past b the exponent is positive


def _reflected(position: Tensor, ahead: Tensor, a: float, variance: Tensor, generator: torch.Generator) -> Tensor:
    """``ahead`` pushed up by as much as the bridge between the two went below a."""
    near = ((position - a) * (ahead - a) < _NEAR * variance).nonzero().flatten()
    if not len(near):
        return ahead
    before, after, spread = position[near], ahead[near], variance[near]
    chance = 1.0 - torch.rand(len(near), dtype=torch.float64, generator=generator)  # in (0, 1]
    lowest = 0.5 * (before + after - ((after - before).square() - 2.0 * spread * chance.log()).sqrt())
    pushed = ahead.clone()
    pushed[near] = after + (a - lowest).clamp(min=0.0)
    return pushed


def _check_noise(s2: float) -> None:
    if not 0.0 < s2 < math.inf:
        raise ValueError(f"s2={s2}: the noise variance must be positive and finite.")
