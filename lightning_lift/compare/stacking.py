"""Several modules of one kind whose parameters are slices of stacked tensors, trained by one optimizer."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from lightning_lift.modules.task import TaskModule

ELEMENTWISE = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)


class NotVectorizable(Exception):  # noqa: N818  # no error: the runs are done one by one
    """These runs cannot be trained at once; ``reason`` says why, in half a sentence.

    Args:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@contextmanager
def said_plainly() -> Iterator[None]:
    """What ``torch.func.vmap`` cannot take is no fault but a ``NotVectorizable``."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "vmap" not in text and "functorch" not in text and "data-dependent" not in text:
            raise
        raise NotVectorizable(f"torch.func.vmap cannot take it ({text.splitlines()[0][:160]})") from error


class SeedStack:
    """S modules of one architecture that share memory with stacked tensors (S, ...).

    Each module's parameter is a view of its slice: what an optimizer does to the stack, the modules see at once, and
    what a module does to itself in place (a projection) is done to the stack. Nothing is ever copied between them.

    Args:
        modules: at least one, at their starts.

    Attributes:
        leaves: the stacked parameters by name, leaves of autograd.

    Raises:
        NotVectorizable: the modules' parameters differ in name or shape, or one of them is shared.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = tuple(modules)
        owned = [dict(module.named_parameters(remove_duplicate=False)) for module in modules]
        shapes = [{name: parameter.shape for name, parameter in own.items()} for own in owned]
        if any(other != shapes[0] for other in shapes[1:]):
            raise NotVectorizable("the seeds' modules differ in the names or shapes of their parameters")
        if len({id(parameter) for parameter in owned[0].values()}) != len(owned[0]):
            raise NotVectorizable("the module uses one parameter in two places")
        self.leaves: dict[str, Tensor] = {}
        for name, first in owned[0].items():
            stacked = torch.stack([own[name].detach() for own in owned])
            self.leaves[name] = stacked.requires_grad_(first.requires_grad)
            for index, own in enumerate(owned):
                own[name].data = stacked.detach()[index]

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def trained(self) -> list[Tensor]:
        """The stacked tensors that are trained."""
        return [leaf for leaf in self.leaves.values() if leaf.requires_grad]

    def lend_gradients(self) -> None:
        """Makes each module's gradients views of the stack's, so that its own ``backward`` adds to them."""
        for index, module in enumerate(self.modules):
            for name, parameter in module.named_parameters():
                gradient = self.leaves[name].grad
                parameter.grad = None if gradient is None else gradient[index]

    def clip_(self, limit: float, algorithm: Literal["norm", "value"] = "norm") -> None:
        """Clips the gradients of each seed by its own norm over all parameters, or elementwise.

        As ``torch.nn.utils.clip_grad_norm_`` does for one module; a gradient that is not finite spoils its own seed
        alone.

        Args:
            limit: largest norm, or largest size of an element.
            algorithm: which.
        """
        gradients = [leaf.grad for leaf in self.trained if leaf.grad is not None]
        if algorithm == "value":
            for gradient in gradients:
                gradient.clamp_(-limit, limit)
            return
        norms = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients])
        factor = (limit / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            # A seed whose gradient is small enough is left alone: no pass over its memory.
            for seed in (factor != 1.0).nonzero().flatten().tolist():
                gradient[seed].mul_(factor[seed])


def make_optimizer(module: TaskModule, tensors: Sequence[Tensor]) -> tuple[torch.optim.Optimizer, Any | None]:
    """The module's own optimizer and scheduler, over other tensors.

    Args:
        module: whose ``configure_optimizers`` is asked.
        tensors: what to train.

    Returns:
        The optimizer, and the scheduler that steps after each of its steps, or None.

    Raises:
        NotVectorizable: an optimizer that is not elementwise, a scheduler that reads a metric, or a module with its
            own ``configure_optimizers``.
    """
    if type(module).configure_optimizers is not TaskModule.configure_optimizers:
        raise NotVectorizable(f"{type(module).__name__} configures its optimizers itself")
    stand_in = copy.copy(module)
    stand_in.parameters = lambda recurse=True: iter(cast(list[nn.Parameter], tensors))  # type: ignore[method-assign]
    made = stand_in.configure_optimizers()
    optimizer, scheduler = made, None
    if isinstance(made, Mapping):
        optimizer, scheduler = made["optimizer"], made["lr_scheduler"]
    if type(optimizer) not in ELEMENTWISE:
        raise NotVectorizable(f"{type(optimizer).__name__} does not treat each number by itself")
    if scheduler is not None:
        if scheduler["interval"] != "step":
            raise NotVectorizable(f"{type(scheduler['scheduler']).__name__} follows a metric of the run")
        scheduler = scheduler["scheduler"]
    _fuse(optimizer)
    return optimizer, scheduler


def _fuse(optimizer: torch.optim.Optimizer) -> None:
    """One pass over memory instead of six, for the optimizers that have it: up to round-off the same step."""
    for group in optimizer.param_groups:
        plain = not any(group.get(key) for key in ("foreach", "capturable", "differentiable", "amsgrad"))
        if isinstance(optimizer, torch.optim.Adam) and group.get("fused") is None and plain:
            group["fused"] = True
            optimizer._step_supports_amp_scaling = True
