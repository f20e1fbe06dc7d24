"""How fast and how exact is the inverse of a conditional flow, beside one L-BFGS over all rows?

A flow of one block is trained on the two moons posterior. 10,000 posterior draws are noise through the inverse of its
potential, at one observation each and all at one observation; they are known from float64. The Newton inverse is
judged by its flags and the largest error |x' - x| / (1 + |x|) of a row without one. The rival is what PCP-Map's code
does: one L-BFGS (strong Wolfe line search) on the sum over all rows, stopped where its largest relative
residual falls no further for 300 evaluations, or after 120 s. Both have the closed form of the gradient, and the
context bound once. Ours is then timed at the residual that L-BFGS reached. Processor time of one thread.
"""

import argparse
import contextlib
import functools
import math
import time

import lightning as L
import torch
from torch import Tensor

from lightning_lift import PICNN, ConditionalConvexFlow
from lightning_lift.datamodules import TwoMoonsPosteriorDataModule
from lightning_lift.flows import invert
from lightning_lift.potential import Potential


def trained(steps: int, rows: int) -> tuple[Potential, Tensor]:
    """The potential under the weights of evaluation, and contexts."""
    L.seed_everything(0, verbose=False)
    data = TwoMoonsPosteriorDataModule(num_simulations=10_000)
    model = ConditionalConvexFlow(data.dim, data.context_shape, functools.partial(PICNN, widths=(64, 64)))
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    L.Trainer(accelerator="cpu", max_steps=steps, **silent).fit(model, data)
    original = data.simulations(rows, torch.Generator().manual_seed(1))
    batch = model.to_batch(original.x, original.context)  # of the prior predictive
    with torch.no_grad():
        (stage,) = model.eval().flow_map(batch).stages
        return stage.potential, batch.context


def joint_lbfgs(potential: Potential, y: Tensor) -> tuple[float, float, int]:
    """Largest relative residual, seconds until it was seen, evaluations."""
    point = torch.zeros_like(y).requires_grad_()
    best, seen, count, at = math.inf, 0.0, 0, 0
    scale, start = 1.0 + y.norm(dim=1), time.process_time()

    class DoneError(Exception):
        pass

    @torch.no_grad()
    def closure() -> Tensor:
        nonlocal best, seen, count, at
        value, gradient = potential.value_gradient(point.detach())
        point.grad = gradient - y
        count += 1
        residual = float((point.grad.norm(dim=1) / scale).max())
        if residual < 0.99 * best:
            best, seen, at = residual, time.process_time() - start, count
        if count > at + 300 or time.process_time() - start > 120.0:
            raise DoneError
        return (value - (point * y).sum(1)).sum()

    options = {"max_iter": 10_000, "max_eval": 20_000, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    with contextlib.suppress(DoneError):
        torch.optim.LBFGS([point], line_search_fn="strong_wolfe", **options).step(closure)
    return best, seen, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--rows", type=int, default=10_000, help="points to find again")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    potential, contexts = trained(arguments.steps, arguments.rows)
    for name, context in (("an observation a row", contexts), ("one observation", contexts[:1])):
        with torch.no_grad():
            single = potential.at(context)
            double = single.to(torch.float64)
            noise = torch.randn(
                len(contexts), potential.dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64
            )
            points = invert(double, noise).x
            y = double.gradient(points)
            for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
                cast, start = single.to(dtype), time.process_time()
                found = invert(cast, y.to(dtype))
                seconds = time.process_time() - start
                # what is sought: the point whose image is this y in this precision
                exact = points if dtype == torch.float64 else invert(double, y.float().double()).x
                error = (found.x.double() - exact).norm(dim=1) / (1.0 + exact.norm(dim=1))
                kept = found.converged
                wrong = int((kept & (error > limit)).sum())
                print(
                    f"{name}, {str(dtype)[6:]}: {seconds:.2f} s, {int((~kept).sum())} flagged, largest unflagged error "
                    f"{float(error[kept].max()):.1e}, {wrong} above {limit:g}"
                )
            for dtype in (torch.float32, torch.float64):
                cast, target = single.to(dtype), y.to(dtype)
                residual, slow, evaluations = joint_lbfgs(cast, target)
                start = time.process_time()
                fast = invert(cast, target, tolerance=residual)
                seconds = time.process_time() - start
                reached = float((fast.residual / (1.0 + y.norm(dim=1))).max())
                print(
                    f"{name}, {str(dtype)[6:]}: L-BFGS {residual:.1e} after {slow:.2f} s ({evaluations} evaluations); "
                    f"Newton {reached:.1e} in {seconds:.2f} s: {slow / seconds:.0f} times as fast"
                )


if __name__ == "__main__":
    main()
