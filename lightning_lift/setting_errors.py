"""What is wrong with settings, in one sentence. jsonargparse reports every alternative of a type that it tried."""

import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from typing import Any

_KEY = re.compile(r'Parser key "([^"]+)":?')
_CLASS = re.compile(r"class_path[ =]'([\w.]+)'")


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
        reason = re.sub(
            r"^Type .* expects a function or a callable class:", "", _KEY.split(line)[-1].strip(" -")
        ).strip()
        if reason and not _is_noise(reason):
            value = value or _short(reason.partition(". Got value: ")[2].partition(". Got value: ")[0])
            reasons.append(reason.partition(". Got value: ")[0])
    if not keys or not reasons:
        return f"{' '.join(text.split())} (`lightning-lift --help` and `lightning-lift fit --help` list what there is)."
    return _sentence(".".join(keys), value, reasons, classes)


def _sentence(key: str, value: str | None, reasons: list[str], classes: list[str]) -> str:
    first, slot = reasons[0], key.rpartition(".")[2]
    subject = key if value is None else f"{key}={value}"
    if name := re.match(r"Expected a dot import path string: (\S+)", first):
        known = ", ".join(sorted({cls.__name__ for base in _bases(slot, classes) for cls in _subclasses(base)}))
        return f"{key}={name[1]}: no class of this name is known; known are {known}; any other by its full path."
    if option := re.match(r"Option '(.*)' is not accepted", first):
        owner = pkgutil.resolve_name(classes[-1])
        return f"{key}.{option[1]}: {owner.__name__} has no such argument; it has {', '.join(_arguments(owner))}."
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


def _is_noise(line: str) -> bool:
    return (
        line.startswith(
            (
                "Given value",
                "Subtypes:",
                "Errors:",
                "Does not validate",
                "Problem with given class_path",
                "Expected a path but",
            )
        )
        or line == "Expected a <class 'NoneType'>"
    )


def _short(value: str) -> str | None:
    nested = re.match(r"NestedArg\(key='.*?', val=(.*)\)$", value)
    value = nested[1] if nested else value
    return value if value and len(value) < 100 and "Namespace(" not in value else None


def _type_name(text: str) -> str:
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    text = re.sub(r"(?:typing\.)?Literal\[(.*?)\]", r"one of \1", text)
    return re.sub(r"\b(?:[a-zA-Z_]\w*\.)+(\w+)", r"\1", text).replace("Sequence", "list")


def _constructors(cls: type) -> Iterator[Any]:
    """The constructors behind a class's arguments: its own, and its bases' as far as it passes keywords on."""
    for owner in cls.__mro__:
        if "__init__" in vars(owner):
            yield owner.__init__  # type: ignore[misc]
            if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(owner.__init__).parameters.values()):  # type: ignore[misc]
                return


def _arguments(cls: type) -> list[str]:
    found = [p for init in _constructors(cls) for p in list(inspect.signature(init).parameters.values())[1:]]
    return list(dict.fromkeys(p.name for p in found if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)))


def _bases(slot: str, classes: list[str]) -> list[type]:
    """The classes that may stand in a slot: of the trainer, or of one of the classes that a message names."""
    import lightning as L

    if slot in ("model", "data"):
        return [L.LightningModule if slot == "model" else L.LightningDataModule]
    owners: list[type] = [*map(pkgutil.resolve_name, classes), L.Trainer]
    for cls in owners:
        for init in _constructors(cls):
            if slot in (hints := typing.get_type_hints(init)):
                return list(_classes(hints[slot]))
    return []


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
