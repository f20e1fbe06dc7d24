"""What is compared: an arm is a parameterization with its arguments, and what else it changes in a configuration."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser, get_loader
from yaml import YAMLError

from lightning_lift.parameterizations import Parameterization, names

_MATCH = "match_parameters"
_NETWORK = "network."
_CLOSING = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class Arm:
    """One way to keep weights nonnegative, as a comparison runs it.

    Attributes:
        label: in tables and figures; no two arms of a comparison share one.
        parameterization: ``{class_path, init_args}``.
        network: arguments replaced on the configuration's network, such as ``widths``.
        callbacks: ``{class_path, init_args}`` each, beside those of the configuration.
        match_parameters: the arm whose number of trained parameters this one is widened (or narrowed) to: all the
            network's widths are multiplied by one factor. None leaves them.
    """

    label: str
    parameterization: dict[str, Any] = field(hash=False)
    network: dict[str, Any] = field(default_factory=dict, hash=False)
    callbacks: tuple[dict[str, Any], ...] = field(default=(), hash=False)
    match_parameters: "Arm | None" = field(default=None, hash=False)


def known_names() -> dict[str, type[Parameterization]]:
    """The short names of the parameterizations, with their classes."""
    return {
        name: value
        for name, value in vars(names).items()
        if isinstance(value, type) and issubclass(value, Parameterization) and value.__module__ == names.__name__
    }


def split_arms(text: str) -> list[str]:
    """Split ``pgd,lift:body_widths=[32,16],direct`` at the commas that stand in no bracket.

    Args:
        text: of one or several arms.

    Raises:
        ValueError: a bracket that is not closed, or an empty arm.
    """
    arms = [piece.strip() for piece in _split(text, ",")]
    if not all(arms):
        raise ValueError(f"arms {text!r}: one of them is empty; write NAME,NAME:key=value,...")
    return arms


def parse_arms(arms: str | Iterable[str | Mapping[str, Any]]) -> tuple[Arm, ...]:
    """Several arms, from one text (see ``split_arms``) or from a list of texts and mappings.

    Args:
        arms: one text, or a list of texts and mappings, each as ``parse_arm`` takes it.

    Raises:
        ValueError: an arm is not valid, there is none, or two have one label.
    """
    parsed = tuple(parse_arm(arm) for arm in (split_arms(arms) if isinstance(arms, str) else arms))
    if not parsed:
        raise ValueError("there is no arm to compare; write NAME,NAME:key=value,...")
    labels = [arm.label for arm in parsed]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"two arms are called {label!r}; give one of them another label: LABEL={label}.")
    return parsed


def parse_arm(arm: str | Mapping[str, Any]) -> Arm:
    """One arm, from ``[LABEL=]NAME[:key=value[:key=value...]]`` or from a mapping.

    The label is the text itself unless given. Keys are arguments of the parameterization, ``network.KEY`` an argument
    of the network, and ``match_parameters=ARM`` the arm to whose number of parameters the network is widened, in
    parentheses where it has arguments: ``direct:match_parameters=(lift:body_widths=[32,16])``. Values are YAML.

    Args:
        arm: the text, or a mapping with ``class_path`` (a short name will do) and optionally ``label``, ``init_args``,
            ``network``, ``callbacks`` and ``match_parameters`` (an arm in either form).

    Raises:
        ValueError: a name or an argument that is not known, or a value that does not fit.
    """
    if isinstance(arm, str):
        return _checked(arm, _read(arm))
    known = ("label", "class_path", "init_args", "network", "callbacks", _MATCH)
    unknown = sorted(set(arm) - set(known))
    if unknown or "class_path" not in arm:
        wrong = f"{unknown[0]!r} is not known" if unknown else "class_path is missing"
        raise ValueError(f"arm {dict(arm)}: {wrong}; an arm may have {', '.join(known)}.")
    return _checked(str(arm["class_path"]), arm)


def _read(text: str) -> dict[str, Any]:
    """The mapping that says the same as a text."""
    head, *pieces = _split(text.strip(), ":")
    label, _, name = head.rpartition("=")
    if not name:
        raise ValueError(f"arm {text!r} names no parameterization; write [LABEL=]NAME[:key=value...].")
    init_args: dict[str, Any] = {}
    network: dict[str, Any] = {}
    match: str | None = None
    for piece in pieces:
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not key:
            raise ValueError(f"arm {text!r}: {piece!r} is no key=value; write [LABEL=]NAME[:key=value...].")
        if key == _MATCH:
            match = value[1:-1] if value.startswith("(") and value.endswith(")") else value
        elif key.startswith(_NETWORK):
            network[key.removeprefix(_NETWORK)] = _value(text, key, value)
        else:
            init_args[key] = _value(text, key, value)
    arm = {"label": label.strip() or text.strip(), "class_path": name.strip(), "init_args": init_args}
    return arm | {"network": network, _MATCH: match}


def _checked(text: str, arm: Mapping[str, Any]) -> Arm:
    """The arm of a mapping; ``text`` names it where something is wrong."""
    name = str(arm["class_path"])
    init_args, network = (dict(arm.get(part) or {}) for part in ("init_args", "network"))
    callbacks = tuple({"class_path": c} if isinstance(c, str) else dict(c) for c in arm.get("callbacks") or ())
    match = None if arm.get(_MATCH) is None else parse_arm(arm[_MATCH])
    cls = _parameterization(text, name)
    accepted = arguments_of(cls)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, "arm")
    for key, value in init_args.items():
        if key not in accepted:
            others = f"its arguments are {', '.join(accepted)}" if accepted else "it has no arguments"
            raise ValueError(f"arm {text!r}: {name} has no argument {key!r}; {others}.")
        try:
            parser.parse_object({"arm": {key: value}})
        except (ArgumentError, TypeError, ValueError) as error:
            wanted = inspect.formatannotation(accepted[key].annotation)
            raise ValueError(f"arm {text!r}: {key}={value!r} is no value of {name}'s {key} ({wanted}).") from error
    try:
        cls(**init_args)
    except (TypeError, ValueError) as error:  # what the constructor itself refuses
        raise ValueError(f"arm {text!r}: {error}") from error
    if match is not None and "widths" in network:
        raise ValueError(f"arm {text!r}: {_MATCH} chooses the widths; leave network.widths out.")
    settings = {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": init_args}
    return Arm(str(arm.get("label") or name), settings, network, callbacks, match)


def _parameterization(text: str, name: str) -> type[Parameterization]:
    short = known_names()
    found: Any = short.get(name)
    if found is None and "." in name:
        found = imported(name)
    if found is None and name.isidentifier():
        found = getattr(importlib.import_module("lightning_lift.parameterizations"), name, None)
    if not (isinstance(found, type) and issubclass(found, Parameterization)):
        raise ValueError(
            f"arm {text!r}: there is no parameterization {name!r}; known are {', '.join(sorted(short))}, and any "
            "Parameterization by its class path."
        )
    return found


def arguments_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The named arguments of a class or a function, by name; empty where it tells none.

    Args:
        function: anything that can be called.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter for parameter in parameters if parameter.kind in kinds}


def imported(class_path: str) -> Any:
    """What stands at a dotted path, or None.

    Args:
        class_path: such as ``torch.optim.Adam``.
    """
    module, _, attribute = class_path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError):
        return None


def _value(text: str, key: str, value: str) -> Any:
    try:
        return get_loader("yaml")(value)  # as the command line reads YAML: 1e-3 is a number
    except YAMLError as error:
        raise ValueError(f"arm {text!r}: {key}={value!r} cannot be read as YAML.") from error


def _split(text: str, separator: str) -> list[str]:
    """Split where the separator stands in no bracket."""
    pieces, opened, start = [], [""], 0
    for position, letter in enumerate(text):
        if letter in _CLOSING.values():
            opened.append(letter)
        elif letter in _CLOSING and opened.pop() != _CLOSING[letter]:
            raise ValueError(f"arm {text!r}: the bracket {letter!r} closes none.")
        elif letter == separator and len(opened) == 1:
            pieces.append(text[start:position])
            start = position + 1
    if len(opened) > 1:
        raise ValueError(f"arm {text!r}: the bracket {opened[-1]!r} is not closed.")
    return [*pieces, text[start:]]
