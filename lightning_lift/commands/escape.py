"""``lightning-lift escape``: mean first-passage times over a barrier, direct against lifted noise."""

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lightning_lift.commands._escape_figure import ArmRow, LevelRow, draw_escape
from lightning_lift.diagnostics.escape import (
    exit_slope,
    log_laplace_exit_time,
    log_mean_exit_time,
    simulate_first_passage,
)
from lightning_lift.diagnostics.escape_problems import EscapeProblem, ShoulderNoise, make_problem
from lightning_lift.files import whole_file

_SIMULATED_BELOW = 1e3  # E[tau]
_SMALL_NOISE = (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)  # of 2 alpha / s2: by quadrature only


def main(args: Sequence[str]) -> None:
    """Run the command.

    Args:
        args: the arguments after ``escape``.

    Raises:
        ValueError: what the arguments have wrong.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-lift escape",
        description="Escape over a barrier alpha, dw = -U'(w) dt + sqrt(s2) dB with s2 = eta sigma_eff^2, reflected at "
        "one end and absorbed at the other: simulated mean first-passage times against the closed form and the Kramers "
        "asymptote, and what direct and lifted noise make of the shoulder's slope sigma_s.",
    )
    parser.add_argument(
        "--potential", choices=["double_well", "shoulder"], default="double_well", help="(default: %(default)s)"
    )
    parser.add_argument("--barrier", type=float, default=1.0, help="alpha (default: %(default)s)")
    parser.add_argument(
        "--sigma_s",
        default="0.05,0.1,0.2,0.4",
        help="slopes of the shoulder's edge, separated by commas; the table of noise levels takes the first "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--levels",
        default="2,3,4,5,6",
        help="noise levels as 2 alpha / s2, separated by commas; those with E[tau] <= 1000 are simulated "
        "(default: %(default)s)",
    )
    parser.add_argument("--paths", type=int, default=10_000, help="simulated paths a level (default: %(default)s)")
    parser.add_argument("--max_time", type=float, help="give a path up at this time (default: 20 mean exit times)")
    parser.add_argument("--eta", type=float, default=1.0, help="learning rate (default: %(default)s)")
    parser.add_argument(
        "--objective", type=float, default=1.0, help="variance of the gradient in theta (default: %(default)s)"
    )
    parser.add_argument(
        "--coupling",
        type=float,
        default=0.0,
        help="the lift's coupling noise over sigma_s^2, of either sign (default: %(default)s)",
    )
    parser.add_argument(
        "--jitter", type=float, default=0.5, help="the lift's jitter noise over sigma_s^2 (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (default: %(default)s)")
    parser.add_argument("--output", default="runs/escape", help="directory to write to (default: %(default)s)")
    parsed = parser.parse_args(args)

    exponents, slopes = _numbers("--levels", parsed.levels), _numbers("--sigma_s", parsed.sigma_s)
    if parsed.max_time is not None and not parsed.max_time > 0.0:
        raise ValueError(f"--max_time {parsed.max_time}: must be positive.")
    noise = ShoulderNoise(parsed.objective, parsed.coupling, parsed.jitter, parsed.eta)
    problem = make_problem(parsed.potential, parsed.barrier, slopes[0])
    levels = level_rows(problem, exponents, parsed.paths, parsed.seed, parsed.max_time)
    arms = [arm_row(make_problem(parsed.potential, parsed.barrier, slope), slope, noise) for slope in slopes]

    console = Console()
    console.print(_level_table(problem, levels))
    console.print(_notes(levels), highlight=False)
    console.print(_arm_table(problem, arms, noise))
    console.print(
        "At a given barrier both exponents are of the order sigma_s^-2; the lift changes the constant (by the factor "
        f"{noise.objective / noise.lifted_constant:.3g} here), not the order.",
        highlight=False,
    )
    output = Path(parsed.output)
    _write(output, problem, levels, arms, noise)
    console.print(f"wrote escape.png, escape.csv, escape.npz under {output}", highlight=False)


def level_rows(
    problem: EscapeProblem, exponents: Sequence[float], num_paths: int, seed: int, max_time: float | None = None
) -> list[LevelRow]:
    """Closed form, asymptote, slope and, where E[tau] is at most 1000, the simulation, by rising exponent.

    Levels of small noise are added, by quadrature only, to show where the slope comes near 2 alpha.

    Args:
        problem: the problem.
        exponents: noise levels as 2 alpha / s2.
        num_paths: simulated paths a level.
        seed: of the simulation.
        max_time: at which a path is given up; None for 20 mean exit times.
    """
    asked = sorted(set(exponents))
    every = asked + [exponent for exponent in _SMALL_NOISE if exponent > asked[-1]]
    s2 = {exponent: 2.0 * problem.barrier / exponent for exponent in every}
    log_times = {exponent: log_mean_exit_time(problem, s2[exponent]) for exponent in every}
    short = [exponent for exponent in asked if log_times[exponent] <= math.log(_SIMULATED_BELOW)]
    with Progress(transient=True) as bar:
        task = bar.add_task(f"{num_paths:,} paths at {len(short)} levels", total=num_paths * len(short))
        results = simulate_first_passage(
            problem,
            [s2[exponent] for exponent in short],
            num_paths,
            seed,
            None if max_time is None else [max_time] * len(short),
            progress=lambda ended: bar.advance(task, ended),
        )
    simulated = dict(zip(short, results, strict=True))
    return [
        LevelRow(
            exponent=exponent,
            s2=s2[exponent],
            log_time=log_times[exponent],
            log_kramers=log_laplace_exit_time(problem, s2[exponent]),
            slope=exit_slope(problem, s2[exponent], log_mean_exit_time) / (2.0 * problem.barrier),
            simulated=simulated.get(exponent),
        )
        for exponent in every
    ]


def arm_row(problem: EscapeProblem, sigma_s: float, noise: ShoulderNoise) -> ArmRow:
    """The closed form under direct and lifted noise.

    Args:
        problem: the problem at this slope.
        sigma_s: slope of the shoulder's edge.
        noise: the two noises.
    """
    direct, lifted = noise.direct(sigma_s), noise.lifted(sigma_s)
    return ArmRow(sigma_s, (direct, lifted), (log_mean_exit_time(problem, direct), log_mean_exit_time(problem, lifted)))


def _numbers(flag: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{flag} {text}: give numbers separated by commas, such as 2,3,4.") from error
    if not all(0.0 < number < math.inf for number in numbers):
        raise ValueError(f"{flag} {text}: every number must be positive and finite.")
    return numbers


def _level_table(problem: EscapeProblem, levels: Sequence[LevelRow]) -> Table:
    table = Table(title=f"Mean first-passage time, {problem.name.replace('_', ' ')}, alpha = {problem.barrier:g}")
    for name in ("exponent", "s2", "simulated", "closed form", "ratio", "Kramers", "slope"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in levels:
        found = row.simulated
        mean, ratio = "-", "-"
        if found is not None:
            mark = "*" if found.num_censored else ""
            mean = f"{found.mean:.4g} +- {found.standard_error:.2g}{mark}"
            ratio = f"{found.mean / math.exp(row.log_time):.4f}"
        kramers = f"{math.exp(row.log_kramers - row.log_time):.4f}"
        table.add_row(
            f"{row.exponent:g}", f"{row.s2:.4g}", mean, _power(row.log_time), ratio, kramers, f"{row.slope:.4f}"
        )
    return table


def _power(log_time: float) -> str:
    if log_time < math.log(1e6):
        return f"{math.exp(log_time):.4g}"
    decades = log_time / math.log(10.0)
    return f"{10.0 ** (decades % 1.0):.3f}e{int(decades // 1.0):+d}"


def _notes(levels: Sequence[LevelRow]) -> str:
    notes = [
        "exponent: 2 alpha/s2. ratio, Kramers: simulated and asymptotic time over the closed form. slope: of "
        "log E(tau) against 1/s2 by the closed form, over 2 alpha; what is missing or beyond 1 is the prefactor's."
    ]
    near = [row.exponent for row in levels if abs(row.slope - 1.0) <= 0.05]
    far = [row.exponent for row in levels if abs(row.slope - 1.0) > 0.05]
    settled = [exponent for exponent in near if not far or exponent > max(far)]
    if settled:
        notes.append(f"Of the levels shown, it stays within 5 % of 1 from 2 alpha/s2 = {min(settled):g} on.")
    for row in levels:
        if row.simulated is not None and row.simulated.num_censored:
            found = row.simulated
            notes.append(
                f"* 2 alpha/s2 = {row.exponent:g}: {found.num_censored} of {found.num_paths} paths were not out at "
                f"time {found.max_time:g}; the mean is total time over exits, which presumes an exponential law."
            )
    return "\n".join(notes)


def _arm_table(problem: EscapeProblem, arms: Sequence[ArmRow], noise: ShoulderNoise) -> Table:
    direct, lifted = (2.0 * problem.barrier / variance for variance in (noise.objective, noise.lifted_constant))
    table = Table(
        title=f"Direct against lifted noise, alpha = {problem.barrier:g}, by the closed form",
        caption=f"c = eta sigma_s^2 log E(tau), which tends to {direct:.4g} (direct) and {lifted:.4g} (lifted)",
    )
    names = ("s2", "log E(tau)", "c")
    for name in ("sigma_s", *(f"{name}\n{arm}" for name in names for arm in ("direct", "lifted"))):
        table.add_column(name, justify="right", no_wrap=True)
    for row in arms:
        numbers = (*row.s2, *row.log_time, *row.scaled(noise.eta))
        table.add_row(f"{row.sigma_s:g}", *(f"{number:.4g}" for number in numbers))
    return table


def _write(
    output: Path,
    problem: EscapeProblem,
    levels: Sequence[LevelRow],
    arms: Sequence[ArmRow],
    noise: ShoulderNoise,
) -> None:
    header = ["exponent", "s2", "log_time", "log_kramers", "slope_over_2alpha"]
    header += ["simulated_mean", "simulated_standard_error", "paths", "censored", "max_time", "time_step"]
    rows = []
    for row in levels:
        found = row.simulated
        drawn: list[float] = [math.nan] * 6
        if found is not None:
            drawn = [found.mean, found.standard_error, found.num_paths, found.num_censored]
            drawn += [found.max_time, found.time_step]
        rows.append([row.exponent, row.s2, row.log_time, row.log_kramers, row.slope, *drawn])
    with whole_file(output / "escape.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    with whole_file(output / "escape.npz") as temporary:
        np.savez(
            temporary,
            potential=problem.name,
            barrier=problem.barrier,
            columns=np.array(header),
            levels=np.array(rows),
            sigma_s=np.array([row.sigma_s for row in arms]),
            arm_s2=np.array([row.s2 for row in arms]),
            arm_log_time=np.array([row.log_time for row in arms]),
            noise=np.array([noise.objective, noise.coupling, noise.jitter, noise.eta]),
        )
    with whole_file(output / "escape.png") as temporary:
        draw_escape(problem, levels, arms, noise).savefig(temporary, format="png", dpi=120)
