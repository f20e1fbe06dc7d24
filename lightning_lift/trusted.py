"""What a checkpoint may name. A file from outside must not be able to run anything: a leaf, as ``files`` is."""

import collections.abc
import functools
import importlib
import inspect
import io
import sys
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self

import fsspec  # type: ignore[import-untyped]
import torch
import yaml
from lightning.pytorch.core.saving import _default_map_location

from lightning_lift.shipped import current_class_path, current_class_paths

_OWN = ("lightning_lift.", "torch.optim.")  # importing these runs nothing that an import of this package does not
_INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"  # by Lightning's own command line, and harmless when checked
_OF_LIGHTNING = ("_instantiator", "_class_path")
_CLASS_KEYS = {"class_path", "init_args", "dict_kwargs"}
LOADING_ERRORS = (ValueError, TypeError, KeyError, AttributeError, IndexError, RuntimeError)  # of damaged parts
_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, types.NoneType, Enum, PurePath)
_PARTS: dict[str, type] = {
    "state_dict": Mapping,
    "hyper_parameters": Mapping,
    "datamodule_hyper_parameters": Mapping,
    "lightning_lift": Mapping,
    "callbacks": Mapping,
    "loops": Mapping,
    "optimizer_states": list,
    "lr_schedulers": list,
    "global_step": int,
    "epoch": int,
}


def read_parts(source: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
    """A checkpoint as plain data, each of its parts of the type that Lightning writes.

    Args:
        source: a path, a URL that fsspec knows, or an open file.
        map_location: as for ``torch.load``.
        weights_only: as for ``torch.load``; None for its own default.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, or a part is missing or of another type.
    """
    options = {"map_location": map_location, "weights_only": weights_only}
    try:
        if hasattr(source, "read"):
            checkpoint = torch.load(source, **options)
        else:
            with fsspec.open(str(source), "rb") as file:
                checkpoint = torch.load(file, **options)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{source}: no such file; the checkpoints of a run lie in its directory under checkpoints/."
        ) from error
    except Exception as error:
        raise ValueError(
            f"{source} cannot be read as a checkpoint ({type(error).__name__}): it is truncated or of another program; "
            "give a file that fit wrote."
        ) from error
    if not isinstance(checkpoint, Mapping) or "state_dict" not in checkpoint:
        raise ValueError(f"{source} is no checkpoint of lightning_lift (no 'state_dict'): give a file that fit wrote.")
    for part, kind in _PARTS.items():
        if part in checkpoint:
            content = checkpoint[part]
            _check_part(source, part, content, kind)
            items = content.items() if part == "loops" else enumerate(content if isinstance(content, list) else ())
            for key, item in items:
                _check_part(source, f"{part}[{key!r}]", item, Mapping)
    for index, state in enumerate(checkpoint.get("optimizer_states", ())):
        for key, kind in (("state", Mapping), ("param_groups", list)):
            _check_part(source, f"optimizer_states[{index}][{key!r}]", state.get(key), kind)
    return dict(checkpoint)


def _check_part(source: Any, name: str, content: Any, kind: type) -> None:
    if not isinstance(content, kind):
        raise ValueError(
            f"{source} is damaged: its {name} is of type {type(content).__name__}; give a file that fit wrote."
        )


def in_words(error: Exception) -> str:
    """The text of an error of a damaged file, with its type where the text alone says little."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def resolve_class(name: str, path: Any, bases: tuple[type, ...]) -> type[Any]:
    """The class that a checkpoint names. Nothing is called, and nothing is imported but this package and torch.optim.

    Args:
        name: of the slot, for the error.
        path: import path of the class, which may be one that an earlier version of this package had.
        bases: the class must be a subclass of one of these.

    Raises:
        ValueError: the path names no class, a class of a module that is not imported yet, or one of another kind.
    """
    path = current_class_path(path) if isinstance(path, str) else ""
    module, _, attribute = path.rpartition(".")
    if not module or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"{name}: {path!r} is no import path of a class.")
    if f"{module}.".startswith(_OWN):
        found = None
        with suppress(ImportError):
            found = getattr(importlib.import_module(module), attribute, None)
    elif module in sys.modules:
        found = vars(sys.modules[module]).get(attribute)  # not getattr: a lazy module would import
    else:
        raise ValueError(
            f"{name}: {path!r} is in a module that is not imported, and a checkpoint must not import one (importing "
            f"runs it). If you trust it, import {module} yourself: on the command line with --import {module}."
        )
    if not isinstance(found, type) or not issubclass(found, bases):
        wanted = " or ".join(base.__name__ for base in bases) or "named by a class path at all"
        raise ValueError(f"{name}: {path!r} is {'no class' if found is None else f'not {wanted}'}, so it is refused.")
    return found


def imported(path: str) -> Any:
    """What an import path names, and None where its module is not imported: for texts that a file may have supplied.

    Args:
        path: of a class.
    """
    module, _, attribute = path.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None)


def check_arguments(cls: type, arguments: Mapping[str, Any], name: str = "") -> None:
    """Refuse arguments that would run more than the constructors of the kinds that a class asks for.

    Each ``{class_path, init_args}`` must be a subclass of what the constructor's annotation names in that place, with
    arguments under the same rule; everything else is plain data.

    Args:
        cls: the class whose constructor will get them.
        arguments: by name, plain data as a checkpoint holds them.
        name: of the place, for the error.

    Raises:
        ValueError: an argument breaks the rule.
    """
    slots = _slots(cls)
    for key, value in arguments.items():
        if not str(key).isidentifier() or key in _CLASS_KEYS:
            raise ValueError(f"{name}{key} is no name of an argument of {cls.__name__}.")
        check_named(f"{name}{key}", value, slots.get(key))


def checked_hyperparameters(cls: type, hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's hyperparameters of a class, safe to be handed to Lightning, with the class paths of today.

    Args:
        cls: the class that will be made of them.
        hyperparameters: as a checkpoint holds them.

    Raises:
        ValueError: they name something that is not allowed.
    """
    stored: dict[str, Any] = current_class_paths({str(key): value for key, value in hyperparameters.items()})
    if stored.get("_instantiator") not in (None, _INSTANTIATOR):
        raise ValueError(f"_instantiator: {stored['_instantiator']!r} is not Lightning's own, so it is refused.")
    check_arguments(cls, {key: value for key, value in stored.items() if key not in _OF_LIGHTNING})
    return stored


def check_named(name: str, value: Any, bases: tuple[type, ...] | None) -> None:
    """Refuse a value whose class paths name other classes than its place asks for.

    Args:
        name: of the place, for the error.
        value: plain data.
        bases: what it may name subclasses of; None for plain data alone.

    Raises:
        ValueError: it names something else.
    """
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_named(f"{name}[{index}]", item, bases)
    elif isinstance(value, Mapping) and "class_path" in value:
        cls = resolve_class(name, value["class_path"], bases or ())
        arguments = [value.get(key, {}) for key in ("init_args", "dict_kwargs")]
        if not value.keys() <= _CLASS_KEYS or not all(isinstance(part, Mapping) for part in arguments):
            raise ValueError(f"{name}: {value!r} is no {{class_path, init_args}}.")
        check_arguments(cls, {**arguments[0], **arguments[1]}, f"{name}.")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if "." in str(key):
                raise ValueError(f"{name}: the key {key!r} would be read as a path into another argument.")
            check_named(f"{name}.{key}", item, bases)
    elif isinstance(value, str):
        if bases or (bases is not None and "." in value):
            # A parser would import it, or read it as a file of settings.
            raise ValueError(f"{name}={value!r}: a checkpoint must give {{class_path, init_args}} there.")
        content = None
        with suppress(yaml.YAMLError):
            content = yaml.load(value, yaml.BaseLoader)  # a parser would read it, and make what it describes
        if isinstance(content, list | Mapping):
            check_named(name, content, bases)


class TrustedLoading:
    """Mixin of LightningModules and LightningDataModules whose ``load_from_checkpoint`` runs nothing but their own."""

    if not TYPE_CHECKING:  # the types are those of Lightning's own method

        @classmethod
        def load_from_checkpoint(
            cls, checkpoint_path: Any, map_location: Any = None, *, weights_only: bool | None = None, **kwargs: Any
        ) -> Self:
            """Lightning's ``load_from_checkpoint``, for files that need not be trusted.

            Args:
                checkpoint_path: a path, a URL or an open file.
                map_location: as for ``torch.load``.
                weights_only: likewise.
                kwargs: Lightning's other arguments, and hyperparameters that replace stored ones.

            Raises:
                FileNotFoundError: there is no such file.
                ValueError: it is no whole checkpoint of this class, or it names what a checkpoint must not.
            """
            places = map_location or _default_map_location  # to the CPU where the device of before is missing
            checkpoint = read_parts(checkpoint_path, places, weights_only)
            key = cls.CHECKPOINT_HYPER_PARAMS_KEY
            try:
                stored = checked_hyperparameters(cls, checkpoint.get(key, {}))
                cls.check_overrides(stored, kwargs)
                # This class is made, whatever the file says, and by its constructor: Lightning's own command line would
                # store objects in the place of plain data.
                checkpoint[key] = {name: value for name, value in stored.items() if name not in _OF_LIGHTNING}
                for legacy in ("hparams", "module_arguments", "hparams_type"):  # Lightning would still obey them
                    checkpoint.pop(legacy, None)
                torch.save(checkpoint, buffer := io.BytesIO())
                buffer.seek(0)
                return super().load_from_checkpoint(buffer, map_location, weights_only=weights_only, **kwargs)
            except LOADING_ERRORS as error:
                raise ValueError(f"{checkpoint_path} does not fit {cls.__name__}: {in_words(error)}") from error

    @classmethod
    def check_overrides(cls, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Refuse arguments that the stored weights were not trained under; the base class takes all.

        Args:
            stored: hyperparameters of the checkpoint.
            given: arguments that replace them.
        """


@functools.cache
def _slots(cls: type) -> dict[str, tuple[type, ...] | None]:
    """By constructor argument, the classes that it may name; None for plain data, () for what must name nothing."""
    slots: dict[str, tuple[type, ...] | None] = {}
    for parent in reversed(cls.__mro__):  # arguments that a constructor passes on as **kwargs are its parents'
        constructor = vars(parent).get("__init__")
        if not inspect.isfunction(constructor):
            continue
        try:
            slots |= {name: _bases(hint) for name, hint in typing.get_type_hints(constructor).items()}
        except (NameError, TypeError, AttributeError):  # names that only a type checker imports
            slots |= dict.fromkeys(constructor.__annotations__, ())
    return slots


def _bases(hint: Any) -> tuple[type, ...] | None:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in (collections.abc.Callable, typing.Callable):
        return ()
    if origin is collections.abc.Callable:
        return _bases(parts[-1]) or ()
    if origin is typing.Literal:
        return None
    if origin is not None:  # a union, a container
        named = [bases for bases in map(_bases, parts) if bases is not None]
        return tuple(base for bases in named for base in bases) if named else None
    if not isinstance(hint, type) or hint in (Any, object) or issubclass(hint, _PLAIN):
        return None
    if hint.__module__ in ("collections.abc", "typing"):
        return None
    return () if getattr(hint, "_is_protocol", False) else (hint,)
