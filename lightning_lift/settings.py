"""Settings of fit as plain data: read, found valid, and turned into objects, as the command line does it."""

import copy
import functools
import inspect
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import lightning as L
import yaml
from jsonargparse import (  # type: ignore[attr-defined]
    ActionConfigFile,
    ActionYesNo,
    ArgumentError,
    Namespace,
    get_loader,
    set_loader,
    set_parsing_settings,
)
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters_context

import lightning_lift.callbacks
import lightning_lift.datamodules  # so that short class names resolve, here and in the next lines
import lightning_lift.modules  # noqa: F401
from lightning_lift.parameterizations import names  # noqa: F401  # short names of the parameterizations
from lightning_lift.setting_errors import null_argument, one_sentence
from lightning_lift.shipped import configuration, current_class_path, current_class_paths

SECTIONS = ("seed_everything", "model", "data", "trainer")
_load_yaml = get_loader("yaml")
# Configurations of earlier versions, which the parser itself reads, name classes as those did.
set_loader("yaml", lambda text: current_class_paths(_load_yaml(text)), (yaml.YAMLError,))
LINKED = ("dim", "context_shape", "columns")
"""Arguments that a model takes from the data module, where it asks for them."""

_INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"  # Lightning's own name for what makes modules from settings


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read the configuration of a fit, with every default filled in.

    Args:
        path: what ``lightning-lift fit --config`` would take; the file may have a ``compare`` mapping with defaults of
            the compare command.
        overrides: further arguments as fit takes them, such as ``--data.batch_size=64`` or another ``--config``.

    Returns:
        ``model``, ``data``, ``trainer`` and ``seed_everything`` as plain settings, and ``compare`` ({} without one).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file or an override is not valid.
    """
    with _said_in_one_line(f"--config {path}"):
        parsed = _parser().parse_args(with_shipped_names(["--config", str(path), *overrides]))
    settings = _plain(parsed)
    for section in ("model", "data"):
        if settings[section] is None:
            raise ValueError(f"--config {path}: it has no {section!r}; a comparison needs a model and a data module.")
    return settings


def with_shipped_names(args: Sequence[str]) -> list[str]:
    """Arguments in which each configuration is a file that can be read, and each class path the one of today.

    Args:
        args: as fit takes them; a ``--config`` may be the bare name of a configuration that the package ships.

    Raises:
        FileNotFoundError: there is no such configuration.
        ValueError: a configuration is no YAML mapping.
    """
    named = []
    for before, arg in zip(["", *args], args, strict=False):
        flag, equals, value = arg.partition("=") if arg.startswith("-") else ("", "", arg)
        is_config = (flag if equals else before) in ("-c", "--config")
        named.append(flag + equals + (_configuration_file(value) if is_config else current_class_path(value)))
    return named


def _configuration_file(name: str) -> str:
    path = configuration(name)
    if "://" in path:  # read through fsspec
        return path
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"--config {name}: no such file, and the package ships no configuration of this name; `lightning-lift "
            "configs` lists those that it ships."
        )
    try:
        content = _load_yaml(Path(path).read_text(encoding="utf-8"))
    except Exception as error:
        raise ValueError(f"--config {name}: is no YAML file ({' '.join(str(error).split())}).") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"--config {name}: holds no mapping of settings (model, data, trainer).")
    return path


def checked(config: Mapping[str, Any], subject: str) -> dict[str, Any]:
    """The settings, found valid and with every default filled in.

    Args:
        config: with all of ``SECTIONS``; it stays as it is.
        subject: what an error is about.

    Raises:
        ValueError: they are not valid, in one line.
    """
    with _said_in_one_line(subject):
        # A copy: the parser turns mappings inside lists into namespaces in place.
        parsed = _parser().parse_object(copy.deepcopy({key: config[key] for key in SECTIONS}))
    settings = _plain(parsed)
    del settings["compare"]
    return settings


def instantiated(config: Mapping[str, Any]) -> Namespace:
    """What settings describe: ``model`` and ``data`` built, the callbacks of ``trainer`` too, but not the trainer.

    Args:
        config: some of ``SECTIONS``, a ``model`` with its ``data``; it stays as it is.

    Raises:
        ValueError: settings that are not valid, or that a constructor refuses.
    """
    sections = copy.deepcopy({key: config[key] for key in SECTIONS if key in config})
    with warnings.catch_warnings(), _said_in_one_line("the configuration"):
        warnings.simplefilter("ignore")
        return instantiate(_parser(), _parser().parse_object(sections), config, instantiate_groups=False)


def instantiate(
    parser: LightningArgumentParser, parsed: Namespace, settings: Mapping[str, Any], instantiate_groups: bool = True
) -> Namespace:
    """Make what parsed settings describe; the modules' hyperparameters are their settings.

    A constructor's error is raised as it is, where jsonargparse would tell every alternative of the argument's type.

    Args:
        parser: that gave ``parsed``.
        parsed: the parsed settings.
        settings: the same as plain data, ``model`` and ``data``.
        instantiate_groups: whether to instantiate class groups too, as jsonargparse calls them.
    """
    refused: list[Exception] = []

    def construct(cls: type, *args: Any, **kwargs: Any) -> Any:
        if issubclass(cls, L.LightningModule):
            asked = inspect.signature(
                cls
            ).parameters  # beside a checkpoint's settings the parser links them to any model
            kwargs = {key: value for key, value in kwargs.items() if key in asked or key not in LINKED[1:]}
        try:
            if name := null_argument(cls, kwargs):
                way_out = "the data module states none" if name == "dim" else "leave it out for its default"
                raise ValueError(f"{cls.__name__}: {name}=null is no value for it: {way_out}.")
            return cls(*args, **kwargs)
        except Exception as error:
            refused.append(ValueError(f"{cls.__name__}: {error}") if isinstance(error, TypeError) else error)
            raise

    makers: list[tuple[Callable[..., Any], type, bool]] = [
        (_instantiator(construct, key, settings.get(key)), cls, True)
        for key, cls in (("model", L.LightningModule), ("data", L.LightningDataModule))
    ]
    makers.append((construct, object, True))
    try:
        return cast(Namespace, parser.instantiate(parsed, instantiate_groups, instantiators=makers))
    except Exception as error:
        failure = refused[-1] if refused else error
    raise failure


def _instantiator(construct: Callable[..., Any], key: str, settings: Any) -> Callable[..., Any]:
    """Make a module whose hyperparameters are its settings, as the command line does: fit loads what it saves."""

    def instantiate(cls: type, *args: Any, applied_instantiation_links: dict[str, Any], **kwargs: Any) -> Any:
        given = {
            "_class_path": settings["class_path"],
            **settings.get("init_args", {}),
            **settings.get("dict_kwargs", {}),
        }
        start = f"{key}.init_args."
        given |= {k[len(start) :]: v for k, v in applied_instantiation_links.items() if k.startswith(start)}
        with _given_hyperparameters_context(hparams=given, instantiator=_INSTANTIATOR):
            return construct(cls, *args, **kwargs)

    return instantiate


@functools.cache
def _parser() -> LightningArgumentParser:
    """A parser of fit's settings, with the links that the command line has."""
    set_parsing_settings(docstring_parse_attribute_docstrings=False)
    parser = LightningArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_argument("--seed_everything", type=int, default=0)
    parser.add_argument("--compare", type=dict[str, Any], default={})
    parser.add_lightning_class_args(L.Trainer, "trainer")
    parser.add_lightning_class_args(cast(Any, L.LightningModule), "model", subclass_mode=True, required=False)
    parser.add_lightning_class_args(cast(Any, L.LightningDataModule), "data", subclass_mode=True, required=False)
    for name in LINKED:
        parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")
    # What else fit writes into the config.yaml of a run: accepted, and without effect in a comparison.
    parser.add_argument("--test_after_fit", action=ActionYesNo, default=False)
    for name in ("ckpt_path", "weights_only"):
        parser.add_argument(f"--{name}", type=Any, default=None)
    return parser


def _plain(parsed: Namespace) -> dict[str, Any]:
    text = _parser().dump(parsed, format="json", skip_unset=False, skip_link_targets=True)
    dumped: dict[str, Any] = json.loads(text)
    for section in ("model", "data"):
        if dumped[section] is not None:
            dumped[section].setdefault("init_args", {})  # a class without arguments
    return {key: dumped[key] for key in (*SECTIONS, "compare")}


@contextmanager
def _said_in_one_line(subject: str) -> Iterator[None]:
    try:
        yield
    except ArgumentError as error:
        raise ValueError(f"{subject}: {one_sentence(str(error))}") from error
