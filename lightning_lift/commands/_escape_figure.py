"""Drawing of the escape table. Pure: numbers in, a figure out, no pyplot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from lightning_lift.diagnostics.escape import FirstPassage
from lightning_lift.diagnostics.escape_problems import EscapeProblem, ShoulderNoise


@dataclass(frozen=True)
class LevelRow:
    """One noise level.

    Attributes:
        exponent: 2 alpha / s2.
        s2: noise variance per unit of time.
        log_time: log E[tau] by the closed form.
        log_kramers: by Laplace's method.
        slope: of log E[tau] against 1/s2 over 2 alpha, by the closed form.
        simulated: the simulation, or None where it would take too long.
    """

    exponent: float
    s2: float
    log_time: float
    log_kramers: float
    slope: float
    simulated: FirstPassage | None


@dataclass(frozen=True)
class ArmRow:
    """Direct and lifted noise at one shoulder slope.

    Attributes:
        sigma_s: the slope.
        s2: noise variance, direct and lifted.
        log_time: log E[tau] by the closed form, direct and lifted.
    """

    sigma_s: float
    s2: tuple[float, float]
    log_time: tuple[float, float]

    def scaled(self, eta: float) -> tuple[float, float]:
        """eta sigma_s^2 log E[tau], direct and lifted: constants in the limit of small slopes."""
        direct, lifted = (eta * self.sigma_s**2 * log_time for log_time in self.log_time)
        return direct, lifted


def draw_escape(
    problem: EscapeProblem, levels: Sequence[LevelRow], arms: Sequence[ArmRow], noise: ShoulderNoise
) -> Figure:
    """Mean exit times, the slope of their logarithm, and direct against lifted noise.

    Args:
        problem: the problem of ``levels``.
        levels: by rising exponent.
        arms: by slope.
        noise: of ``arms``.
    """
    figure = Figure(figsize=(13.5, 4.2), layout="constrained")
    times, slopes, constants = figure.subplots(1, 3)
    simulated = [row for row in levels if row.simulated is not None and math.isfinite(row.simulated.mean)]
    short = [row for row in levels if not simulated or row.exponent <= 1.5 * simulated[-1].exponent]
    exponents = [row.exponent for row in short]
    times.plot(exponents, [row.log_time / math.log(10.0) for row in short], color="C0", label="closed form")
    times.plot(
        exponents, [row.log_kramers / math.log(10.0) for row in short], "--", color="0.4", label="Kramers asymptote"
    )
    if simulated:
        means = [row.simulated for row in simulated if row.simulated is not None]
        times.errorbar(
            [row.exponent for row in simulated],
            [math.log10(result.mean) for result in means],
            yerr=[2.0 * result.standard_error / (result.mean * math.log(10.0)) for result in means],
            fmt="o",
            color="C3",
            markersize=4.0,
            capsize=3.0,
            label=f"simulated, {means[0].num_paths:,} paths (2 standard errors)",
        )
    times.set_xlabel(r"$2\alpha/s_2$")
    times.set_ylabel(r"$\log_{10} E[\tau]$")
    times.set_title(f"{problem.name.replace('_', ' ')}, $\\alpha$ = {problem.barrier:g}")
    times.legend(frameon=False)

    slopes.axhspan(0.95, 1.05, color="0.9", label="within 5 %")
    slopes.axhline(1.0, color="0.6", linewidth=0.8)
    slopes.plot([row.exponent for row in levels], [row.slope for row in levels], "o-", color="C0", markersize=3.0)
    slopes.set_xscale("log")
    slopes.set_xlabel(r"$2\alpha/s_2$")
    slopes.set_ylabel(r"$d \log E[\tau] / d(1/s_2)$ over $2\alpha$")
    slopes.set_title("slope, with the prefactor's bias")
    slopes.legend(frameon=False)

    sigma = [row.sigma_s for row in arms]
    for index, (label, variance) in enumerate((("direct", noise.objective), ("lifted", noise.lifted_constant))):
        scaled = [row.scaled(noise.eta)[index] for row in arms]
        constants.plot(sigma, scaled, "o-", color=f"C{index}", markersize=4.0, label=label)
        constants.axhline(2.0 * problem.barrier / variance, color=f"C{index}", linestyle=":", linewidth=1.0)
    constants.set_xscale("log")
    constants.set_xticks(sigma, [f"{slope:g}" for slope in sigma])
    constants.minorticks_off()
    constants.set_ylim(bottom=0.0)
    constants.set_xlabel(r"$\sigma_s$")
    constants.set_ylabel(r"$\eta\,\sigma_s^2 \log E[\tau]$")
    constants.set_title("one order, two constants (dotted: limits)")
    constants.legend(frameon=False)
    return figure
