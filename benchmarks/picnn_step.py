"""What does one exact step of a partially convex network cost, beside the same network by ``torch.func.hessian``?

A step is forward and backward of mean(|grad F|^2 / 2 - log det Hess F) at one context a row, in float32, processor
time of one thread: D = 10, a context of 10 numbers, four layers of 64 units, a batch of 256. The reference is equation
3 of Amos et al. (2017) written down once more, with the same parameters; losses and gradients are compared first. The
arms take turns, so that a busy machine slows both. The last line is an ICNN of the same size: what the context costs.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, vmap

from lightning_lift.networks import ICNN, PICNN, ConvexNetwork
from lightning_lift.potential import Potential

DIM, CONTEXT, WIDTHS, BATCH = 10, 10, (64,) * 4, 256


def energy(parameters: dict[str, Tensor], x: Tensor, u: Tensor) -> Tensor:
    """F of one point at one context."""

    def head(index: int, u: Tensor) -> Tensor:
        name = f"conditioner.heads.{index}"
        product = parameters[f"{name}.weight"] @ u
        return product + parameters[f"{name}.bias"] if f"{name}.bias" in parameters else product

    one, z = math.log(math.expm1(1.0)), None
    for index, width in enumerate(WIDTHS):
        q, bias, p = head(index, u).split([DIM, width, WIDTHS[index - 1] if index else 0])
        a = parameters[f"layers.{index}.input_weight"] @ (x * (1.0 + q)) + bias + parameters[f"layers.{index}.bias"]
        if z is not None:
            a = a + parameters[f"layers.{index}.hidden_weight"] / len(z) @ (z * F.softplus(p + one))
        z = F.softplus(a)
        name = f"conditioner.layers.{index}"
        u = F.silu(parameters[f"{name}.weight"] @ u + parameters[f"{name}.bias"])
    assert z is not None
    slope, _, p = head(len(WIDTHS), u).split([DIM, 1, WIDTHS[-1]])
    scale, k = (F.softplus(10.0 * parameters[f"raw_{name}"]) for name in ("output_scale", "strong_convexity"))
    convex = scale * (parameters["output_weight"] / len(z)) @ (z * F.softplus(p + one))
    return convex + (scale * parameters["output_input_weight"] + slope) @ x + 0.5 * k * x @ x


def loss_of(gradient: Tensor, logdet: Tensor) -> Tensor:
    return (0.5 * gradient.square().sum(1) - logdet).mean()


def ours(network: ConvexNetwork, x: Tensor, u: Tensor | None) -> Tensor:
    weights = {name: network.get_parameter(name) for name in network.nonnegative_names()}
    return loss_of(*Potential(network, weights, u).gradient_logdet(x))


def reference(network: ConvexNetwork, x: Tensor, u: Tensor) -> Tensor:
    of_row = functools.partial(energy, dict(network.named_parameters()))
    hessians = vmap(hessian(of_row))(x, u)
    logdet = 2.0 * torch.linalg.cholesky(hessians).diagonal(dim1=1, dim2=2).log().sum(1)
    return loss_of(vmap(grad(of_row))(x, u), logdet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="of each arm, two steps each, of which the second counts")
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, plain = PICNN(DIM, (CONTEXT,), WIDTHS), ICNN(DIM, WIDTHS)
    with torch.no_grad():
        for parameter in network.conditioner.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    x, u = torch.randn(BATCH, DIM), torch.randn(BATCH, CONTEXT)
    arms: dict[str, Callable[[], Tensor]] = {
        "torch.func.hessian": lambda: reference(network, x, u),
        "PICNN": lambda: ours(network, x, u),
        "ICNN": lambda: ours(plain, x, None),
    }
    mine, theirs = (
        torch.autograd.grad(arms[name](), list(network.parameters())) for name in ("PICNN", *list(arms)[:1])
    )
    worst = max(float((a - b).norm() / b.norm().clamp_min(1e-6)) for a, b in zip(mine, theirs, strict=True))
    print(
        f"losses {arms['PICNN']().item():.6f}, {arms['torch.func.hessian']().item():.6f}; gradients within {worst:.1e}"
    )
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(turns):
        for name, arm in arms.items():
            for _ in range(2):
                start = time.process_time()
                arm().backward()
                elapsed = time.process_time() - start
            times[name].append(1e3 * elapsed)
    ours_ms = statistics.median(times["PICNN"])
    for name, found in times.items():
        print(f"{name:20} {statistics.median(found):8.1f} ms  {statistics.median(found) / ours_ms:6.2f} of PICNN's")


if __name__ == "__main__":
    main()
