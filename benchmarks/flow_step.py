"""What does one exact training step of a convex potential flow cost, beside the usual ways to get one?

A step is forward, backward and Adam on the loss mean(|grad F|^2 / 2 - log det Hess F), in float32. Ours is
``ICNN.gradient_logdet``. The others differentiate the same network, written again here without any of our code:

    rows        one double-backward pass for each row of the Hessian
    batched     all rows in one pass (``is_grads_batched=True``)
    vmapped     ``torch.func.hessian`` under ``vmap``
    stochastic  no Hessian: conjugate gradients on Hessian-vector products and one Rademacher probe give an unbiased
                gradient and no value, as in Huang et al., Convex potential flows (2021)

All arms start from the same parameters; before anything is timed, the loss and the gradients of the exact ones are
compared. The arms take turns of a few steps, so that a busy machine slows all of them and each finds its own data and
code in the caches, as in training; ``--clock cpu`` counts processor time only.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_lift.networks import ICNN


@dataclass(frozen=True)
class Setting:
    """A network and a batch."""

    dim: int
    widths: tuple[int, ...]
    batch: int
    tabular: bool  # ActNorm inside and learned scales, as in CP-Flow's network for tables
    turns: int


SETTINGS = {
    "2d": Setting(2, (64,) * 5, 128, tabular=False, turns=20),
    "21d": Setting(21, (64,) * 10, 256, tabular=True, turns=5),
}
K = 0.05
STEPS = 6  # in a turn; the first is not counted


def make_icnn(setting: Setting) -> ICNN:
    torch.manual_seed(0)
    k = "learned" if setting.tabular else K
    network = ICNN(
        setting.dim,
        setting.widths,
        strong_convexity=k,
        divide_by_fan_in=False,
        actnorm=setting.tabular,
        weight_init="constant",
        bias_std=0.1,
    )
    with torch.no_grad():
        for name in network.nonnegative_names():
            weight = network.get_parameter(name)
            weight.mul_(0.5 + torch.rand_like(weight))
    network.initialize_actnorm_(torch.randn(256, setting.dim), {})
    return network


class Reference(nn.Module):
    """The network as one would write it down, with the parameters of an ICNN."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        icnn = make_icnn(setting)
        self.tabular, self.depth = setting.tabular, len(setting.widths)
        self.centers = [buffer for name, buffer in icnn.named_buffers() if name.endswith("actnorm.center")]
        for name, parameter in icnn.named_parameters():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(parameter.detach().clone()))

    def forward(self, x: Tensor) -> Tensor:
        """The potential: shape (N, D) to (N,)."""
        p = self._parameters
        z = x
        for layer in range(self.depth):
            a = F.linear(x, p[f"layers_{layer}_input_weight"])
            if layer:
                a = a + F.linear(z, p[f"layers_{layer}_hidden_weight"])
            if self.tabular:
                a = a - self.centers[layer]
                a = torch.exp(p[f"layers_{layer}_actnorm_log_scale"]) * a + p[f"layers_{layer}_actnorm_shift"]
            z = F.softplus(a + p[f"layers_{layer}_bias"])
        energy = z @ p["output_weight"] + x @ p["output_input_weight"]
        square = 0.5 * x.square().sum(1)
        if self.tabular:
            return F.softplus(p["raw_output_scale"]) * energy + F.softplus(p["raw_strong_convexity"]) * square
        return energy + K * square


def exact_loss(gradient: Tensor, hessian: Tensor) -> Tensor:
    logdet = 2.0 * torch.linalg.cholesky(hessian).diagonal(dim1=1, dim2=2).log().sum(1)
    return (0.5 * gradient.square().sum(1) - logdet).mean()


def map_of(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    return x, torch.autograd.grad(network(x).sum(), x, create_graph=True)[0]


def rows_loss(network: nn.Module, x: Tensor) -> Tensor:
    x, gradient = map_of(network, x)
    rows = [torch.autograd.grad(column.sum(), x, create_graph=True)[0] for column in gradient.unbind(1)]
    return exact_loss(gradient, torch.stack(rows, 1))


def batched_loss(network: nn.Module, x: Tensor) -> Tensor:
    x, gradient = map_of(network, x)
    directions = torch.eye(x.shape[1]).unsqueeze(1).expand(-1, len(x), -1)
    rows = torch.autograd.grad(gradient, x, directions, is_grads_batched=True, create_graph=True)[0]
    return exact_loss(gradient, rows.transpose(0, 1))


def vmapped_loss(network: nn.Module, x: Tensor) -> Tensor:
    parameters = dict(network.named_parameters())

    def energy(point: Tensor) -> Tensor:
        return torch.func.functional_call(network, parameters, (point.unsqueeze(0),)).squeeze(0)

    gradient = torch.func.vmap(torch.func.grad(energy))(x)
    return exact_loss(gradient, torch.func.vmap(torch.func.hessian(energy))(x))


def stochastic_loss(network: nn.Module, x: Tensor, iterations: int = 4) -> Tensor:
    x, gradient = map_of(network, x)
    probe = torch.empty_like(x).bernoulli_().mul_(2.0).sub_(1.0)
    solution, residual, direction = torch.zeros_like(x), probe.clone(), probe.clone()
    size = residual.square().sum(1, keepdim=True)
    for _ in range(iterations):
        product = torch.autograd.grad(gradient, x, direction, retain_graph=True)[0]
        step = size / (direction * product).sum(1, keepdim=True)
        solution, residual = solution + step * direction, residual - step * product
        size, before = residual.square().sum(1, keepdim=True), size
        direction = residual + size / before * direction
    product = torch.autograd.grad(gradient, x, probe, create_graph=True)[0]
    return (0.5 * gradient.square().sum(1) - (solution * product).sum(1)).mean()


def our_loss(network: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(network, ICNN)
    gradient, logdet = network.gradient_logdet(x, {})
    return (0.5 * gradient.square().sum(1) - logdet).mean()


ARMS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "ours": our_loss,
    "rows": rows_loss,
    "batched": batched_loss,
    "vmapped": vmapped_loss,
    "stochastic": stochastic_loss,
}
EXACT = ("rows", "batched", "vmapped")


class Arm:
    """One way, with a network and an optimizer of its own."""

    def __init__(self, name: str, setting: Setting, fused_adam: bool) -> None:
        self.loss = ARMS[name]
        self.network: nn.Module = make_icnn(setting) if name == "ours" else Reference(setting)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4, fused=fused_adam)

    def step(self, x: Tensor) -> None:
        """Forward, backward and Adam."""
        loss = self.loss(self.network, x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def check(arms: dict[str, Arm], x: Tensor) -> float:
    """The largest relative difference of a gradient from ours; raises where an arm computes something else."""
    worst = 0.0
    results = {}
    for name in ("ours", *EXACT):
        loss = arms[name].loss(arms[name].network, x)
        results[name] = loss.item(), torch.autograd.grad(loss, list(arms[name].network.parameters()))
    for name in EXACT:
        for mine, theirs in zip(results["ours"][1], results[name][1], strict=True):
            worst = max(worst, ((mine - theirs).norm() / theirs.norm().clamp_min(1e-6)).item())
        if worst > 1e-3 or abs(results[name][0] - results["ours"][0]) > 1e-3 * (1.0 + abs(results[name][0])):
            raise RuntimeError(f"{name} does not compute what ours does: {results[name][0]}, {results['ours'][0]}.")
    return worst


def peak_mib(arm: str, setting: str, fused_adam: bool) -> float:
    """Growth of a fresh process's peak memory over five steps, after a warm-up on two rows, in MiB."""
    command = [sys.executable, __file__, "--peak-of", arm, "--setting", setting, *["--fused-adam"] * fused_adam]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(arm: str, setting: Setting, fused_adam: bool) -> None:
    one, x = Arm(arm, setting, fused_adam), torch.randn(setting.batch, setting.dim)
    one.step(x[:2])
    before = peak_kib()
    for _ in range(5):
        one.step(x)
    print((peak_kib() - before) / 1024.0)


def peak_kib() -> float:
    """This process's largest resident memory so far."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss of a child starts at its parent's
        return float(status.read_text().split("VmHWM:")[1].split()[0])
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, object]:
    setting = SETTINGS[name]
    torch.manual_seed(1)
    x = torch.randn(setting.batch, setting.dim)
    arms = {arm: Arm(arm, setting, arguments.fused_adam) for arm in ARMS}
    difference = check(arms, x)
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(arguments.turns or setting.turns):
        for arm_name, arm in arms.items():
            for step in range(STEPS):
                start = clock()
                arm.step(x)
                if step:
                    seconds[arm_name].append(clock() - start)
    times = {arm: 1e3 * statistics.median(values) for arm, values in seconds.items()}
    least = {arm: 1e3 * min(values) for arm, values in seconds.items()}
    fastest = min(EXACT, key=times.__getitem__)
    return {
        "median_ms": times,
        "least_ms": least,
        "peak_mib": {arm: peak_mib(arm, name, arguments.fused_adam) for arm in arms} if arguments.memory else None,
        "fastest_exact_reference": fastest,
        "reference_over_ours": times[fastest] / times["ours"],
        "ours_over_stochastic": times["ours"] / times["stochastic"],
        "largest_gradient_difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="default: all")
    parser.add_argument("--turns", type=int, help="turns of each arm, five counted steps each; default: 20 and 5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--fused-adam", action="store_true", help="Adam in one kernel, for all arms")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory, in a fresh process an arm")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--peak-of", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = arguments.setting or list(SETTINGS)
    if arguments.peak_of:
        print_peak(arguments.peak_of, SETTINGS[settings[0]], arguments.fused_adam)
        return
    results = {name: measure(name, arguments) for name in settings}
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "clock": arguments.clock, "settings": results}))
        return
    for name, row in results.items():
        setting = SETTINGS[name]
        print(f"{name}: D = {setting.dim}, widths {list(setting.widths)}, batch {setting.batch}")
        print(f"{'':12}{'median ms':>11}{'least ms':>10}{'over ours':>11}{'peak MiB':>10}")
        for arm, median in row["median_ms"].items():
            peak = f"{row['peak_mib'][arm]:10.1f}" if row["peak_mib"] else f"{'':>10}"
            print(f"{arm:12}{median:11.2f}{row['least_ms'][arm]:10.2f}{median / row['median_ms']['ours']:11.2f}{peak}")
        print(
            f"fastest exact reference ({row['fastest_exact_reference']}) over ours {row['reference_over_ours']:.2f}, "
            f"ours over stochastic {row['ours_over_stochastic']:.2f}, "
            f"largest gradient difference {row['largest_gradient_difference']:.1e}\n"
        )


if __name__ == "__main__":
    main()
