"""The command line: ``lightning-lift fit|validate|test|predict --config FILE``, and the commands in ``commands``."""

import argparse
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import lightning as L
from jsonargparse import ActionYesNo, ArgumentError, Namespace, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    Callback,
    Checkpoint,
    ModelCheckpoint,
    ProgressBar,
    RichModelSummary,
    RichProgressBar,
)
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lightning_lift import __version__
from lightning_lift.callbacks import LastCheckpoint, PredictionWriter, RunSummary
from lightning_lift.commands import COMMANDS, underscored
from lightning_lift.modules.checkpoint_files import write_whole_files
from lightning_lift.modules.checkpoints import read_checkpoint
from lightning_lift.modules.divergence import DivergenceError, is_raised_by
from lightning_lift.modules.fitting import forget_averages
from lightning_lift.setting_errors import one_sentence
from lightning_lift.settings import LINKED, instantiate, with_shipped_names
from lightning_lift.trusted import imported

_MENDABLE = (ValueError, OSError, DivergenceError, ArgumentError, argparse.ArgumentError, MisconfigurationException)
_SPEAKING = ("lightning_lift.", "lightning.", "torch.optim.")  # what these raise is written for the user
_TRACEBACK = "LIGHTNING_LIFT_TRACEBACK"
_OWN_ON_RESUME = ("lr_scheduler", "learning_rate")
_LOGGER = {
    "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
    "init_args": {"save_dir": "runs", "name": "default", "default_hp_metric": False},
}


class LiftCLI(LightningCLI):
    """LightningCLI on any LightningModule with a ``dim`` and any data module with a ``dim``.

    Args:
        args: the command line, or None for ``sys.argv``.
        run: whether to run the subcommand; False only instantiates.
    """

    def __init__(self, args: ArgsType = None, run: bool = True) -> None:
        set_parsing_settings(docstring_parse_attribute_docstrings=False)
        super().__init__(
            model_class=L.LightningModule,  # ConvexModules, and the plain networks of the rescaling experiments
            datamodule_class=L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},  # a test after a fit in the same directory
            trainer_defaults={"logger": _LOGGER},
            auto_configure_optimizers=False,
            parser_kwargs={
                "prog": "lightning-lift",
                "version": f"lightning_lift {__version__}",
                "description": "Training input-convex neural networks. Commands besides those below, each with its own "
                f"--help: {', '.join(COMMANDS)}. Every command takes --import MODULE, which imports a module of yours "
                "first: its classes have short names then, and checkpoints may name them. --config takes a file, or "
                "the name of one that `lightning-lift configs` lists.",
                "exit_on_error": False,
                **{name: {"exit_on_error": False} for name in self.subcommands()},
            },
            load_from_checkpoint_support=False,  # `instantiate` does it
            args=args,
            run=run,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link the data's dimension, context and columns to the model and add ``--test_after_fit``."""
        for name in LINKED:
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")
        parser.add_argument(
            "--test_after_fit",
            action=ActionYesNo,
            default=False,
            help="After fit, test the checkpoint of the best monitored metric; the last weights if none is, or if "
            "training batches are drawn fresh: then nothing overfits, and a choice by noisy validation rows harms.",
        )
        parser.add_argument(
            "--compare",
            type=dict[str, Any] | None,
            default=None,
            help="Options of `lightning-lift compare` that a configuration brings; every other command ignores them.",
        )

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "test":
            parser.set_defaults({"verbose": False})  # RunSummary prints the metrics
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the command line, in which configurations and classes may be named as ``shipped`` knows them."""
        if isinstance(args, dict | Namespace):
            self.config = parser.parse_object(args)
            return
        args = underscored(sys.argv[1:] if args is None else args)
        self.config = parser.parse_args(with_shipped_names(args))

    def _parse_ckpt_path(self) -> None:
        subcommand = self.config.get("subcommand")
        path = self.config[subcommand].get("ckpt_path") if subcommand else None
        if path is None:
            if subcommand not in (None, "fit"):
                raise ValueError(
                    f"{subcommand} without --ckpt_path would evaluate an untrained model: give the checkpoint of a fit "
                    "(its path is printed at the end of fit), or run fit with --test_after_fit."
                )
            return
        stored = _checked_hyperparameters(str(path), subcommand)
        model = self.config[subcommand].get("model") or {}
        before = _flat(model)
        for key in _OWN_ON_RESUME if subcommand == "fit" else ():
            if model.get(f"init_args.{key}") is not None:
                stored.pop(key, None)  # the module says what changes
        if stored:
            named = stored.pop("_class_path", None)
            model = stored if named is None else {"class_path": named, "dict_kwargs": stored}
            try:
                self.config = self.parser.parse_object({subcommand: {"model": model}}, self.config)
            except ArgumentError as error:
                raise ValueError(f"{path}: {one_sentence(str(error))}") from error
        after = _flat(self.config[subcommand].get("model"))
        for key in sorted(before.keys() & after.keys()):
            if key not in LINKED and not _is_same(key, before[key], after[key]):
                rank_zero_warn(
                    f"model.{key}={before[key]!r} is replaced by the checkpoint's {after[key]!r}: a checkpoint brings "
                    "its own model settings."
                )

    def instantiate_classes(self) -> None:
        """Make the data module, the model and the trainer."""
        self._dump_config()
        self.config_init = instantiate(self.parser, self.config, self.config_dump)
        self.datamodule, self.model = (self._get(self.config_init, key) for key in ("data", "model"))
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """The trainer; with a progress bar, a run summary and ``last.ckpt``, unless it brings its own.

        With ``logger: false`` only checkpoints with a ``dirpath`` of their own are written.
        """
        config = self._get(self.config_init, "trainer")
        callbacks = config["callbacks"] or []
        callbacks = list(callbacks) if isinstance(callbacks, list) else [callbacks]
        extra: list[tuple[type[Callback] | tuple[type[Callback], ...], Callback]] = [(RunSummary, RunSummary())]
        if config["enable_progress_bar"] is not False:
            extra.append((ProgressBar, RichProgressBar(refresh_rate=10)))
        if config["enable_model_summary"] is not False:
            extra.append((RichModelSummary, RichModelSummary()))
        if config["enable_checkpointing"] is not False:
            extra.append((LastCheckpoint, LastCheckpoint()))
        if self.subcommand == "predict":
            extra.append((PredictionWriter, PredictionWriter()))
        callbacks += [new for kind, new in extra if not any(isinstance(old, kind) for old in callbacks)]
        if config["logger"] is False:  # no run has a folder then, and nothing goes to the working directory instead
            self.save_config_callback = None
            callbacks = [c for c in callbacks if not isinstance(c, ModelCheckpoint) or c.dirpath is not None]
            kwargs["enable_checkpointing"] = any(isinstance(c, Checkpoint) for c in callbacks)
        trainer = super().instantiate_trainer(callbacks=callbacks, **kwargs)
        write_whole_files(trainer)
        return trainer

    def after_fit(self) -> None:
        """Test on request: the best checkpoint of a fixed training split, the last weights of fresh rows."""
        if not self._get(self.config, "test_after_fit"):
            return
        forget_averages(self.trainer)
        fresh = getattr(self.datamodule, "draws_fresh_rows", False)
        monitoring = [c for c in self.trainer.checkpoint_callbacks if getattr(c, "monitor", None) and not fresh]
        best = next((path for c in monitoring if (path := getattr(c, "best_model_path", ""))), None)
        self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best, weights_only=True, verbose=False)


def _checked_hyperparameters(path: str, subcommand: str) -> dict[str, Any]:
    if path in ("best", "last", "hpc", "registry"):
        if subcommand == "fit":
            return {}
        raise ValueError(
            f"--ckpt_path {path} means a fit of the same process, and this process has none: give the file (it is "
            "printed at the end of fit and stands in metrics.json), or run fit with --test_after_fit."
        )
    stored: dict[str, Any] = read_checkpoint(path).get("hyper_parameters", {})
    stored.pop("_instantiator", None)
    return stored


def _is_same(key: str, old: Any, new: Any) -> bool:
    """Whether two settings mean the same; one class has several paths."""
    if old != new and key.endswith("class_path"):
        return imported(old) is imported(new) is not None
    return bool(old == new)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted keys."""
    if isinstance(value, Namespace):
        value = value.as_dict()
    if not isinstance(value, Mapping):
        return {prefix.removesuffix("."): value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        # init_args and dict_kwargs are how jsonargparse spells "arguments": the same setting under either
        inner = prefix if key in ("init_args", "dict_kwargs") else f"{prefix}{key}."
        flat |= _flat(item, inner)
    return flat


def main(args: ArgsType = None) -> None:
    """Run the command line.

    Errors that a user can mend (a bad value, a missing file) and errors that this package, Lightning or an optimizer
    itself raises are printed in one line and end with status 1; with the environment variable
    LIGHTNING_LIFT_TRACEBACK=1 they are raised with their traceback, as every other error is.

    Args:
        args: the command line, or None for ``sys.argv``.
    """
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning 2.6 on torch 2.13
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for a user's modules; never first, where they could hide a library
    try:
        arguments = _import_modules(sys.argv[1:] if args is None else args)
        if isinstance(arguments, list) and arguments and arguments[0] in COMMANDS:
            importlib.import_module(COMMANDS[arguments[0]]).main(underscored(arguments[1:]))
            return
        LiftCLI(arguments)
    except SIGTERMException as error:
        raise SystemExit(128 + signal.SIGTERM) from error  # Lightning's own status is 0
    except Exception as error:
        if os.environ.get(_TRACEBACK) == "1" or not (isinstance(error, _MENDABLE) or is_raised_by(error, *_SPEAKING)):
            raise
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)  # a KeyError quotes
        text = one_sentence(text) if isinstance(error, ArgumentError) else text
        sys.stderr.write(f"lightning-lift: error: {text}\n({_TRACEBACK}=1 shows where it was raised.)\n")
        raise SystemExit(1) from error


def _import_modules(args: ArgsType) -> ArgsType:
    """Import what ``--import`` names, in any place, and return the other arguments."""
    if not isinstance(args, list):
        return args
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--import", action="append", default=[], dest="modules", metavar="MODULE")
    parsed, others = parser.parse_known_args(args)
    for name in parsed.modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"--import {name}: {error}; it is looked for in the working directory and on the Python path."
            ) from error
    return others
