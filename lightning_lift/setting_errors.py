"""What is wrong with settings, in one sentence. jsonargparse reports every alternative of a type that it tried."""

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from jsonargparse import ArgumentParser

from lightning_lift.trusted import imported

_KEY = re.compile(r'Parser key "([^"]+)":?')
_CLASS = re.compile(r"class_path[ =]'([\w.]+)'")

# What leads to a reason, or belongs to an alternative that nobody meant.
_NOISE = (
    *("Given value", "Subtypes:", "Errors:", "Does not validate", "Problem with given class_path"),
    *("Expected a path but", "Expected a <class 'NoneType'>"),
    *("Not a valid subclass", "Subclass types expect", "a class path (str)", "a dict with"),
)


def one_sentence(text: str) -> str:
    """The key, the value, what is wrong and what would be right, out of a message of jsonargparse.

    Args:
        text: of an ``ArgumentError``.
    """
    keys: list[str] = []
    classes: list[str] = []
    reasons: list[str] = []
    value = None
    for line in map(str.strip, text.splitlines()):
        if reasons and line.startswith("Given value: "):  # the end of the innermost alternatives
            value = value or _short(line.removeprefix("Given value: ").partition(". Got value: ")[0])
            break
        if not reasons:
            keys += _KEY.findall(line)
            classes += _CLASS.findall(line)
        reason = _KEY.split(line)[-1].strip(" -").rpartition("expects a function or a callable class:")[2].strip()
        if reason and not reason.startswith(_NOISE):
            value = value or _short(reason.partition(". Got value: ")[2].partition(". Got value: ")[0])
            reasons.append(reason.partition(". Got value: ")[0])
    if keys and not reasons and (kind := re.search(r"Not a valid subclass of (\w+)", text)):
        reasons = [f"is no {kind[1]}: give its class_path, and its arguments as init_args"]
    if not keys or not reasons:
        return f"{' '.join(text.split())} (`lightning-lift --help` and `lightning-lift fit --help` list what there is)."
    return _sentence(".".join(keys), value, reasons, classes)


def _sentence(key: str, value: str | None, reasons: list[str], classes: list[str]) -> str:
    # A class where a list of them may stand: what is wrong with it says more.
    first = next((reason for reason in reasons if reason != "Expected a <class 'list'>"), reasons[0])
    slot, owner = key.rpartition(".")[2], imported(classes[-1]) if classes else None
    subject = key if value is None else f"{key}={value}"
    if name := re.match(r"Expected a dot import path string: (\S+)", first):
        known = ", ".join(sorted({cls.__name__ for base in _bases(slot, classes) for cls in _subclasses(base)}))
        known = f"known are {known}; any other by its full path" if known else "give its full path"
        return f"{key}={name[1]}: no class of this name is known; {known}."
    option = re.match(r"Option '(.*)' is not accepted", first)
    if option and inspect.isclass(owner):
        arguments = ArgumentParser(exit_on_error=False).add_class_arguments(owner, fail_untyped=False)
        known = ", ".join(arguments) or "none; class_path says which class it is"
        return f"{key}.{option[1]}: {owner.__name__} has no such argument; it has {known}."
    if wrong := re.match(r"Expected '(.*)' to be a (?:subclass of|function that returns) <class '(.*)'>", first):
        return f"{key}={wrong[1]}: is no {wrong[2]}."
    if wrong := re.match(r"Import path does not correspond to a (subclass of \w+)", first):
        return f"{subject}: is no {wrong[1]}."
    if first.startswith("Expected a "):
        types = [reason.removeprefix("Expected a ") for reason in reasons if reason.startswith("Expected a ")]
        named = dict.fromkeys(_type_name(name) for name in types if not name.startswith(("dot import", "path but")))
        return f"{subject}: expected {' or '.join(named)}."
    if first.startswith("No module named"):
        first += "; a module of yours is looked for in the working directory and on the Python path"
    return f"{subject}: {first.rstrip('.')}."


def _short(value: str) -> str | None:
    nested = re.match(r"NestedArg\(key='.*?', val=(.*)\)$", value)
    value = nested[1] if nested else value
    return value if value and len(value) < 100 and "Namespace(" not in value else None


def _type_name(text: str) -> str:
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    text = re.sub(r"(?:typing\.)?Literal\[(.*?)\]", r"one of \1", text)
    return re.sub(r"\b(?:[a-zA-Z_]\w*\.)+(\w+)", r"\1", text).replace("Sequence", "list")


def _hints(cls: type) -> Iterator[tuple[inspect.Parameter, Any]]:
    """A class's arguments with their types: its own, and its bases' as far as it passes keywords on."""
    for owner in cls.__mro__:
        if "__init__" not in vars(owner):
            continue
        init: Any = vars(owner)["__init__"]
        with suppress(NameError, TypeError, ValueError):  # written in C, or with types that are no names at run time
            parameters, hints = inspect.signature(init).parameters.values(), typing.get_type_hints(init)
            yield from ((parameter, hints.get(parameter.name, Any)) for parameter in parameters)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
                return


def null_argument(cls: type, arguments: Mapping[str, Any]) -> str | None:
    """The first argument that is None where the constructor takes no None, which jsonargparse lets pass.

    Args:
        cls: the class that is to be made.
        arguments: what its constructor is given.
    """
    given = {name for name, value in arguments.items() if value is None}
    for parameter, hint in _hints(cls) if given else ():
        takes_none = hint in (Any, object) or type(None) in typing.get_args(hint) or parameter.default is None
        if parameter.name in given and not takes_none:
            return parameter.name
    return None


def _bases(slot: str, classes: list[str]) -> list[type]:
    """The classes that may stand in a slot: of the trainer, or of one of the classes that a message names."""
    import lightning as L

    if slot in ("model", "data"):
        return [L.LightningModule if slot == "model" else L.LightningDataModule]
    owners: list[type] = [*filter(inspect.isclass, map(imported, classes)), L.Trainer]
    found = (hint for cls in owners for parameter, hint in _hints(cls) if parameter.name == slot)
    return list(_classes(next(found, None)))


def _classes(hint: Any) -> Iterator[type]:
    if inspect.isclass(hint) and hint not in (bool, int, float, str, dict, type(None)):
        yield hint
    for argument in typing.get_args(hint):
        yield from _classes(argument)


def _subclasses(base: type) -> Iterator[type]:
    cls: type
    for cls in base.__subclasses__():
        if not cls.__name__.startswith("_") and not inspect.isabstract(cls):
            yield cls
        yield from _subclasses(cls)
