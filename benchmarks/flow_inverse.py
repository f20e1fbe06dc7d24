"""How accurate and how fast is the inverse of a trained convex potential flow?

x are 10,000 fresh points of the data, y = grad F(x) in float64. The per-sample Newton of ``flows.inverse`` gets x back
in float64 and in float32, and its errors and flags are set against the stated bounds. The yardstick is one joint
L-BFGS (torch.optim.LBFGS, strong Wolfe) on sum F(x) - <x, y> over the whole batch in float64, which is how CP-Flow
inverts, with the gradient by autograd as there, and by our closed form. Its time is that to the first iteration whose
largest error is at most 1e-9, or, if it never gets there, to its smallest error (the sum over the batch hides the last
digits of a point). The ratio is to the time of Newton to that same error.

Without ``--checkpoint`` a single potential is trained first, on 8 Gaussians in 2-D and on a correlated skewed table (or
the rows of ``--rows``) in 21-D. Every block of a checkpoint of ``ConvexPotentialFlow`` is a problem of its own.
"""

import argparse
import contextlib
import copy
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lightning_lift.flows import invert
from lightning_lift.networks import ICNN
from lightning_lift.potential import Potential

Problem = tuple[str, Potential, Tensor]  # name, float64 potential, float64 inputs


def eight_gaussians(count: int, generator: torch.Generator) -> Tensor:
    angle = torch.randint(0, 8, (count,), generator=generator) * (math.pi / 4)
    centre = 2.0 * torch.stack([angle.cos(), angle.sin()], 1)
    return centre + 0.1 * torch.randn(count, 2, generator=generator)


def correlated_table(count: int, generator: torch.Generator) -> Tensor:
    """21 correlated columns, half of them skewed."""
    mixing = torch.randn(21, 21, generator=torch.Generator().manual_seed(1)) / 21**0.5 + 0.5 * torch.eye(21)
    rows = torch.randn(count, 21, generator=generator) @ mixing
    rows[:, ::2] = (0.7 * rows[:, ::2]).exp()
    return (rows - rows.mean(0)) / rows.std(0)


def read_rows(path: str) -> Tensor:
    with open(path) as file:
        lines = [line.split(",") for line in file.read().splitlines()]
    rows = torch.tensor([[float(v) for v in line[1:]] for line in lines if line[0] in ("1", "1.0")])
    return (rows - rows.mean(0)) / rows.std(0)


def train(rows: Tensor, network: ICNN, steps: int, generator: torch.Generator) -> Potential:
    """Maximum likelihood with softplus weights, in float32; the potential that comes back is float64."""
    own = dict(network.named_parameters())
    latents = {n: torch.nn.Parameter(own[n].detach().expm1().log()) for n in network.nonnegative_names()}
    free = [p for n, p in own.items() if n not in latents]
    optimizer = torch.optim.Adam([*latents.values(), *free], lr=1e-2, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = rows[torch.randint(0, len(rows), (256,), generator=generator)]
        potential = Potential(network, {n: torch.nn.functional.softplus(t) for n, t in latents.items()})
        y, logdet = potential.gradient_logdet(batch)
        loss = (0.5 * y.square().sum(1) - logdet).mean() + 0.5 * network.dim * math.log(2 * math.pi)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*latents.values(), *free], 10.0)
        optimizer.step()
        schedule.step()
    print(f"trained {network.dim}-D, {steps} steps: loss of the last batch {float(loss.detach()):.3f} nats")
    weights = {n: torch.nn.functional.softplus(t.detach()).double() for n, t in latents.items()}
    return Potential(copy.deepcopy(network).double().requires_grad_(False), weights)


def problems(arguments: argparse.Namespace) -> Iterator[Problem]:
    generator = torch.Generator().manual_seed(arguments.seed)
    torch.manual_seed(arguments.seed)
    if arguments.checkpoint:
        yield from checkpoint_problems(arguments, generator)
        return
    shape: dict[str, Any] = {"divide_by_fan_in": True, "weight_init": "constant", "strong_convexity": 0.05}
    if 2 in arguments.dims:
        network = ICNN(2, (64, 64, 64), free_weight_std=2.0, bias_std=2.0, **shape)
        potential = train(eight_gaussians(20_000, generator), network, arguments.steps, generator)
        yield "2-D", potential, eight_gaussians(arguments.points, generator).double()
    if 21 in arguments.dims:
        rows = read_rows(arguments.rows) if arguments.rows else correlated_table(20_000, generator)
        network = ICNN(rows.shape[1], (64,) * 5, free_weight_std=0.5, bias_std=1.0, **shape)
        potential = train(rows, network, arguments.steps // 3, generator)
        # More points than rows: resampled, with a little noise, so that no two are the same.
        picked = rows[torch.randint(0, len(rows), (arguments.points,), generator=generator)]
        yield f"{rows.shape[1]}-D", potential, (picked + 0.05 * torch.randn(picked.shape, generator=generator)).double()


def checkpoint_problems(arguments: argparse.Namespace, generator: torch.Generator) -> Iterator[Problem]:
    from lightning_lift.modules import ConvexPotentialFlow

    module = (
        ConvexPotentialFlow.load_from_checkpoint(arguments.checkpoint, map_location="cpu")
        .double()
        .eval()
        .requires_grad_(False)
    )
    flow = module.flow_map()
    # The flow's own samples: whatever it was trained on, they are where it has its mass.
    x = flow.inverse(torch.randn(arguments.points, module.dim, generator=generator, dtype=torch.float64)).x
    for index, stage in enumerate(flow.stages):
        u = stage.normalize(x).detach()
        yield f"{module.dim}-D, block {index + 1}", stage.potential, u
        x = stage.potential.gradient(u).detach()


@torch.no_grad()
def newton(potential: Potential, x: Tensor, y: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    cast, target = potential.to(dtype), y.to(dtype)
    start = time.perf_counter()
    result = invert(cast, target)
    seconds = time.perf_counter() - start
    least = torch.linalg.eigvalsh(torch.cat([potential.hessian(rows) for rows in x.split(1000)]))[:, 0]
    scale = 1.0 + y.norm(dim=1)
    error = (result.x.double() - x).norm(dim=1)
    unit = 10.0 * torch.finfo(dtype).eps * scale / least
    within = error <= 1e-9 if dtype == torch.float64 else (error <= unit) & (result.residual <= 1e-5 * scale)
    return {
        "seconds": seconds,
        "flagged": int((~result.converged).sum()),
        "outside_bound_unflagged": int((result.converged & ~within).sum()),
        "largest_error": float(error[result.converged].max()),
        "largest_error_over_10_eps_scale_per_eigenvalue": float((error / unit)[result.converged].max()),
        "largest_relative_residual": float((result.residual / scale)[result.converged].max()),
        "least_eigenvalue": float(least.min()),
        "iterations_mean": float(result.iterations.double().mean()),
        "iterations_max": int(result.iterations.max()),
    }


def newton_to(potential: Potential, x: Tensor, y: Tensor, error: float) -> float:
    """Seconds with the loosest tolerance, in float64, whose largest error is no more than this."""
    seconds = math.nan
    for exponent in range(3, 13):
        start = time.perf_counter()
        result = invert(potential, y, tolerance=10.0**-exponent)
        seconds = time.perf_counter() - start
        if float((result.x - x).norm(dim=1).max()) <= error:
            break
    return seconds


class EnoughError(Exception):
    """The error, or the limit of time, is reached."""


def joint_lbfgs(
    potential: Potential, x: Tensor, y: Tensor, error: float, limit: float, autograd: bool
) -> dict[str, Any]:
    """Time until the largest error is at most ``error``, or stops falling; looking at the error is not counted."""
    point = torch.zeros_like(y).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [point], max_iter=10_000, max_eval=20_000, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
    )
    seconds, evaluations, least, last = 0.0, 0, math.inf, time.perf_counter()
    reached_at = 0.0  # seconds at which the least error was seen

    def closure() -> Tensor:
        nonlocal seconds, evaluations, least, last, reached_at
        if autograd:
            optimizer.zero_grad()
            loss = (potential.value(point) - (point * y).sum(1)).sum()
            loss.backward()
        else:
            with torch.no_grad():
                parts = [potential.value_gradient(rows) for rows in point.detach().split(1000)]
                value, gradient = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
                point.grad = gradient - y
                loss = (value - (point * y).sum(1)).sum()
        seconds += time.perf_counter() - last
        evaluations += 1
        found = float((point.detach() - x).norm(dim=1).max())
        if found < least:
            least, reached_at = found, seconds
        if least <= error or seconds > limit:
            raise EnoughError
        last = time.perf_counter()
        return loss.detach()

    with contextlib.suppress(EnoughError):
        optimizer.step(closure)
    return {
        "seconds": reached_at,
        "evaluations": evaluations,
        "largest_error": least,
        "reached": least <= error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="of a ConvexPotentialFlow; default: train one here")
    parser.add_argument("--rows", help="csv with the label first; its rows with label 1 are the 21-D data")
    parser.add_argument("--dims", type=int, nargs="+", choices=[2, 21], default=[2, 21])
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=3000, help="of training in 2-D; a third of it in 21-D")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each L-BFGS run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {}
    for name, potential, x in problems(arguments):
        with torch.no_grad():
            y = torch.cat([potential.gradient(rows) for rows in x.split(2000)])
        ours = {str(dtype)[6:]: newton(potential, x, y, dtype) for dtype in (torch.float64, torch.float32)}
        theirs = {
            how: joint_lbfgs(potential, x, y, 1e-9, arguments.limit, autograd=how == "autograd")
            for how in ("closed form", "autograd")
        }
        for row in theirs.values():
            row["newton_seconds"] = newton_to(potential, x, y, row["largest_error"])
            row["ratio"] = row["seconds"] / row["newton_seconds"]
        results[name] = {**ours, "lbfgs": theirs}
        print(f"\n{name}, {len(x)} points, smallest eigenvalue {ours['float64']['least_eigenvalue']:.2g}")
        for dtype, row in ours.items():
            print(
                f"  Newton {dtype}: {row['seconds']:.2f} s, {row['iterations_mean']:.1f} iterations (at most "
                f"{row['iterations_max']}), flagged {row['flagged']}, outside the bound and not flagged "
                f"{row['outside_bound_unflagged']}, largest error {row['largest_error']:.2g}, relative residual "
                f"{row['largest_relative_residual']:.2g}"
            )
        for how, row in theirs.items():
            print(
                f"  joint L-BFGS float64, gradient by {how}: {row['seconds']:.2f} s, {row['evaluations']} evaluations, "
                f"smallest largest error {row['largest_error']:.2g}"
                + (", 1e-9 never reached" if not row["reached"] else "")
                + f"; Newton to that error {row['newton_seconds']:.2f} s, ratio {row['ratio']:.1f}",
                flush=True,
            )
    if arguments.json:
        print(json.dumps({"points": arguments.points, "threads": arguments.threads, "problems": results}))


if __name__ == "__main__":
    main()
