"""Factories as plain data: what a checkpoint stores of a class or a partial, and back."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from lightning_lift.trusted import check_named, resolve_class

_PLAIN = (bool, int, float, str, type(None))


def plain(name: str, value: Any) -> Any:
    """The plain form of a hyperparameter, which loads with ``weights_only=True``.

    Numbers, strings, None and containers of them stay; an importable class becomes ``{class_path, init_args}``, and so
    does a ``functools.partial`` of one with keyword arguments. The plain defaults of its constructor are stored too:
    a later version, or a configuration file beside the checkpoint, must not change what was trained.

    Args:
        name: of the hyperparameter, for the error.
        value: what the constructor was given.

    Raises:
        TypeError: anything else, such as a lambda or an object that was built already.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): plain(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, functools.partial) and not value.args and isinstance(value.func, type):
        return _described(name, value.func, value.keywords)
    if isinstance(value, type):
        return _described(name, value, {})
    raise TypeError(
        f"{name}={value!r} cannot be stored in a checkpoint: give an importable class, or functools.partial(Class, "
        "key=value), instead of a lambda, a function or a built object."
    )


def factory(name: str, value: Any, base: type) -> Callable[..., Any]:
    """The callable behind a factory argument: itself, or built from its plain form.

    Args:
        name: of the argument, for the error.
        value: a callable, or ``{class_path, init_args}``.
        base: what the plain form must name a subclass of: a checkpoint must not be able to call anything else.

    Raises:
        TypeError: neither of the two.
        ValueError: the class path names no subclass of ``base``, or a class of a module that is not imported.
    """
    if isinstance(value, Mapping) and "class_path" in value:
        check_named(name, value, (base,))
        made: Callable[..., Any] = resolve_class(name, value["class_path"], (base,))
        return functools.partial(made, **value.get("init_args", {}))
    if not callable(value):
        raise TypeError(
            f"{name}={value!r}: give a class or a functools.partial of one (a factory, not a built object)."
        )
    return value  # type: ignore[no-any-return]


def constructor_of(factory: Any) -> Callable[..., Any]:
    """What a factory calls in the end: a class behind a partial, or behind the command line's own caller.

    Args:
        factory: a class, a function or a ``functools.partial`` of one.
    """
    # the command line's factories are partials of its own caller, with the class among their arguments
    named = [part for part in getattr(factory, "args", ()) if isinstance(part, type)]
    made_of: Callable[..., Any] = named[0] if named else getattr(factory, "func", factory)
    return made_of


def unset_options(factory: Any, wished: Mapping[str, Any]) -> dict[str, Any]:
    """Those wished options that the factory's constructor has, and that are not set to anything but their default.

    Args:
        factory: as for :func:`constructor_of`.
        wished: values by the names of arguments.
    """
    known = inspect.signature(constructor_of(factory)).parameters
    given = getattr(factory, "keywords", {})
    return {
        name: value
        for name, value in wished.items()
        if name in known and given.get(name, known[name].default) == known[name].default
    }


def _described(name: str, cls: type, keywords: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {}
    for parameter in inspect.signature(cls).parameters.values():
        with contextlib.suppress(TypeError):
            if parameter.default is not parameter.empty:
                defaults[parameter.name] = plain(name, parameter.default)
    return {"class_path": _class_path(name, cls), "init_args": {**defaults, **plain(name, keywords)}}


def _class_path(name: str, cls: type) -> str:
    path = f"{cls.__module__}.{cls.__qualname__}"
    if vars(sys.modules[cls.__module__]).get(cls.__qualname__) is not cls:
        raise TypeError(
            f"{name}={cls!r} cannot be found again by its path {path!r}, so a checkpoint could not be loaded: define "
            "the class at the top level of an importable module."
        )
    return path
