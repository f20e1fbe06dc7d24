"""What this package writes into a checkpoint, how it is read, and what is refused."""

import inspect
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_lift import __version__
from lightning_lift.modules.factories import plain
from lightning_lift.networks.actnorm import ActNorm, upgrade_actnorm_
from lightning_lift.parameterizations import Parameterization, names
from lightning_lift.trusted import (
    LOADING_ERRORS,
    TrustedLoading,
    checked_hyperparameters,
    in_words,
    read_parts,
    resolve_class,
)

KEY = "lightning_lift"
FORMAT = 2  # raised when what is stored means something else; 1 is converted on loading
# Entries of an optimizer's state, by their power of a gradient.
_MOMENTS = {"exp_avg": 1, "momentum_buffer": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2, "sum": 2}
# Arguments of networks and parameterizations that only start the weights or train them.
_NOT_MEANING = {"weight_init", "weight_init_value", "free_weight_std", "bias_std", "slack_start", "slack_std"}
_NOT_MEANING |= {"latent_noise", "rho", "inner_steps"}


def refresh_summaries(
    checkpoint: dict[str, Any],
    parameterization: Parameterization,
    rows: Callable[[], Iterable[Tensor] | None],
) -> None:
    """Make each set of weights in a checkpoint carry the reference summary of its own body.

    Weight averaging stores two sets, of which at most one is the live module's.

    Args:
        checkpoint: as Lightning is about to write it, changed in place.
        parameterization: of the module.
        rows: gives the calibration batches, or None.
    """
    if not parameterization.needs_calibration:
        return
    prefix = "parameterization."
    for key in ("state_dict", "current_model_state"):
        if key not in checkpoint or not parameterization.is_state_stale(checkpoint[key], prefix):
            continue
        batches = rows()
        if batches is None:
            rank_zero_warn(
                "this checkpoint holds a lift without a fresh reference summary, because there is no data module with "
                "calibration_dataloader(): call module.parameterization.calibrate(batches) after loading it."
            )
            return
        checkpoint[key] = dict(checkpoint[key])  # extra state is replaced, not changed in the live module
        parameterization.calibrate_state(checkpoint[key], prefix, batches)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint as plain data, on the CPU: of this package, or of another LightningModule that it trained.

    What it names is safe to be handed to the command line's parser and to Lightning: see ``lightning_lift.trusted``.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, is of another program, is of a format that this version does not read, or names
            what a checkpoint must not.
    """
    checkpoint = read_parts(path)
    stored = checkpoint.get("hyper_parameters", {})
    if KEY not in checkpoint and "_class_path" not in stored:  # other LightningModules are not stamped
        raise ValueError(
            f"{path} is no checkpoint of lightning_lift and does not say which class it is of (no "
            "'hyper_parameters._class_path'): give a file that fit wrote, or load your module yourself."
        )
    try:
        if KEY in checkpoint:
            check_stamp(checkpoint)
        cls: type = L.LightningModule
        if "_class_path" in stored:
            cls = resolve_class("_class_path", stored["_class_path"], (cls,))
        checkpoint["hyper_parameters"] = checked_hyperparameters(cls, stored)
    except LOADING_ERRORS as error:
        raise ValueError(f"{path}: {in_words(error)}") from error
    return checkpoint


def load_module(path: str | Path) -> L.LightningModule:
    """The module of a checkpoint, on the CPU, under the weights of evaluation (averaged ones where there are some).

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: ``read_checkpoint`` refuses it, it does not say of which class it is, or that class refuses it.
    """
    checkpoint = read_checkpoint(path)
    named = checkpoint["hyper_parameters"].get("_class_path")
    if named is None:
        raise ValueError(f"{path} does not say which class it is of (no 'hyper_parameters._class_path').")
    cls = resolve_class(str(path), named, (L.LightningModule,))
    source: Any = path
    if not issubclass(cls, TrustedLoading):  # Lightning's own would read the file as it is
        torch.save(checkpoint, source := io.BytesIO())
        source.seek(0)
    module: L.LightningModule = cls.load_from_checkpoint(source, map_location="cpu", weights_only=True)
    return module


def named_modules(path: str | Path) -> list[str]:
    """The modules of the classes that a checkpoint names; what a new process has to import before it loads it.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: ``read_checkpoint`` refuses it.
    """
    text = json.dumps(read_checkpoint(path)["hyper_parameters"], default=str)
    return sorted(set(re.findall(r'"_?class_path": "([\w.]+)\.\w+"', text)))


class StoredModule(TrustedLoading, L.LightningModule):
    """A LightningModule with plain hyperparameters, whose checkpoints are stamped, and checked before they are loaded.

    Subclass requirements: the constructor calls ``save_plain_hyperparameters``; ``meaning`` names the arguments
    without which the weights mean something else.
    """

    meaning: tuple[str, ...] = ("network", "parameterization")

    def save_plain_hyperparameters(self) -> None:
        """``save_hyperparameters`` in the plain form of ``factories``; called from a constructor.

        Raises:
            TypeError: an argument that a checkpoint could not store.
        """
        # The frames of the constructors that are running, outermost class first: Lightning reads their arguments.
        frame = inspect.currentframe()
        assert frame is not None
        self.save_hyperparameters(frame=frame.f_back)
        stored = {name: plain(name, value) for name, value in self.hparams.items()}
        # The command line's own instantiator would hand this constructor objects that cannot be stored again; the plain
        # forms are what it reads itself.
        stored.pop("_instantiator", None)
        if "_class_path" not in stored and inspect.getfullargspec(type(self).__init__).varkw is None:
            stored["_class_path"] = f"{type(self).__module__}.{type(self).__qualname__}"  # lets the CLI load it
        self.hparams.clear()
        self.hparams.update(stored)
        self._hparams_initial = AttributeDict(stored)

    @classmethod
    def check_overrides(cls, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Refuse a network or parameterization in ``load_from_checkpoint`` that is not the stored one.

        Args:
            stored: hyperparameters of the checkpoint.
            given: arguments that replace them.

        Raises:
            ValueError: they differ in what the weights mean; it names the difference.
        """
        _check_meaning(stored, {name: plain(name, given[name]) for name in cls.meaning if name in given})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Stamp version and format."""
        checkpoint[KEY] = {"version": __version__, "format": FORMAT}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another program, format, network or parameterization before a weight is loaded.

        Raises:
            ValueError: it is one of these; it names the first difference.
        """
        with self._naming_the_file():
            check_stamp(checkpoint)
            if checkpoint[KEY]["format"] == 1:
                _upgrade(checkpoint, self)
                checkpoint[KEY] = {**checkpoint[KEY], "format": FORMAT}  # not to be converted a second time
            stored = checkpoint.get("hyper_parameters", {})
            theirs = {name: plain(name, stored[name]) for name in self.meaning if name in stored}  # given ones too
            _check_meaning(theirs, {name: self.hparams.get(name) for name in self.meaning})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights; what does not fit is one clear error.

        Args:
            state_dict: by name.
            strict: whether missing and unknown names are refused; another shape or type is refused always.
            assign: as in ``torch.nn.Module``.

        Raises:
            ValueError: the weights are of another network or parameterization, or damaged.
        """
        with self._naming_the_file():
            _check_tensors(state_dict, self.state_dict(), strict)
            return super().load_state_dict(state_dict, strict, assign)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except LOADING_ERRORS as error:
            path = None if self._trainer is None else self._trainer.ckpt_path
            if path is None:  # ``load_from_checkpoint`` names it
                raise
            raise ValueError(f"{path} does not fit {type(self).__name__}: {in_words(error)}") from error


def check_stamp(checkpoint: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another program or of another format.

    Args:
        checkpoint: as it was read.

    Raises:
        ValueError: it has no stamp of this package, or one of a format that this version does not read.
    """
    stamp = checkpoint.get(KEY)
    if not isinstance(stamp, Mapping):
        raise ValueError(
            f"this is no checkpoint of lightning_lift (its 'lightning_lift' entry is {stamp!r}): pass one that a fit "
            "of this package wrote."
        )
    if stamp.get("format") not in (1, FORMAT):
        raise ValueError(
            f"the checkpoint has format {stamp.get('format')} (written by lightning_lift {stamp.get('version')}) and "
            f"version {__version__} reads format {FORMAT}: install the version that wrote it, or train again."
        )


def _upgrade(checkpoint: dict[str, Any], module: nn.Module) -> None:
    """Convert what version 0.1 wrote: its ActNorms had their shift in the units of what they normalise."""
    norms = {f"{name}.": part for name, part in module.named_modules() if isinstance(part, ActNorm)}
    if any(part._parameters["log_scale"] is None for part in norms.values()):
        raise ValueError(
            "the checkpoint is of version 0.1 and its parameterization emits the network's ActNorms, which have "
            "another form since: evaluate it with that version, or train again."
        )
    trained = checkpoint.get("current_model_state", checkpoint["state_dict"])  # beside an average of weights
    scales: dict[str, Tensor] = {}  # d (what is stored now) / d (what was), by parameter
    for prefix in norms:
        if upgrade_actnorm_(trained, prefix):
            shifts = (f"{prefix}shift", prefix.removesuffix("actnorm.") + "bias")
            scales |= dict.fromkeys(shifts, trained[f"{prefix}log_scale"].exp())
        upgrade_actnorm_(checkpoint["state_dict"], prefix)
    parameters = [name for name, _ in module.named_parameters()]
    for optimizer in checkpoint.get("optimizer_states", ()):
        if sum(len(group["params"]) for group in optimizer["param_groups"]) != len(parameters):
            continue  # not over all parameters in their order
        for index, moments in optimizer["state"].items():
            scale = scales.get(parameters[index])
            for name, power in _MOMENTS.items() if scale is not None else ():
                if isinstance(moments.get(name), Tensor):
                    moments[name] = moments[name] / torch.as_tensor(scale) ** power


def _check_meaning(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for name in ours:
        one, two = (_flat(settings.get(name), name) for settings in (theirs, ours))
        for key in one:
            if key in two and one[key] != two[key]:  # a setting that only one version knows says nothing
                raise ValueError(
                    f"the checkpoint is of another {name}: it was trained with {key}={one[key]!r} and this module has "
                    f"{two[key]!r}; use the configuration that it was trained with."
                )


def _flat(value: Any, name: str) -> dict[str, Any]:
    """A factory's plain form as one level of dotted names, without what only starts or trains the weights."""
    if not isinstance(value, Mapping) or "class_path" not in value:
        return {name: list(value) if isinstance(value, tuple) else value}
    flat = {name: class_of(value["class_path"])}
    for key, item in value.get("init_args", {}).items():
        if key not in _NOT_MEANING:
            flat |= _flat(item, f"{name}.{key}")
    return flat


def class_of(path: str) -> str:
    """One name for a class and for the short names that are subclasses with nothing of their own."""
    try:
        cls = resolve_class("", path, (object,))
    except ValueError:
        return path
    while cls.__module__ == names.__name__ and cls.__base__ is not None:
        cls = cls.__base__
    return f"{cls.__module__}.{cls.__qualname__}"


def _check_tensors(theirs: Mapping[str, Any], ours: Mapping[str, Any], strict: bool = True) -> None:
    missing, unknown = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if strict and (missing or unknown):
        raise ValueError(
            f"the checkpoint is of another network or parameterization: it lacks {missing[:4]} and has {unknown[:4]} "
            "beyond this module; use the configuration that it was trained with."
        )
    for name, tensor in ours.items():
        found = theirs.get(name, tensor)
        if isinstance(tensor, Mapping) and isinstance(found, Mapping):  # extra state
            # the shape of "scale" tells whether the data's units mix columns, which the weights do not care for
            common = [key for key in tensor if isinstance(tensor[key], Tensor) and key in found and key != "scale"]
            parts = [{f"{name}.{key}": part[key] for key in common} for part in (found, tensor)]
            _check_tensors(parts[0], parts[1])
        elif isinstance(tensor, Tensor) != isinstance(found, Tensor) or isinstance(tensor, Mapping):
            raise ValueError(f"the checkpoint is damaged: its {name} is a {type(found).__name__}.")
        elif isinstance(tensor, Tensor) and tensor.shape != found.shape:
            raise ValueError(
                f"the checkpoint's {name} has shape {tuple(found.shape)} and this module's {tuple(tensor.shape)}: "
                "widths or dimension differ; use the configuration that it was trained with."
            )
        elif isinstance(tensor, Tensor) and (
            found.is_floating_point() != tensor.is_floating_point()
            or (not found.is_floating_point() and found.dtype != tensor.dtype)
            or found.layout != tensor.layout
            or found.is_meta
        ):
            raise ValueError(f"the checkpoint is damaged: its {name} is {found.dtype}, and {tensor.dtype} is expected.")
