"""The command line: ``lightning-lift fit|validate|test|predict --config FILE`` and ``rescale CHECKPOINT``."""

import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import lightning as L
from jsonargparse import ActionYesNo, Namespace, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ProgressBar, RichModelSummary, RichProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_warn

import lightning_lift.datamodules  # noqa: F401  # so that short class names resolve
from lightning_lift import __version__
from lightning_lift.callbacks import PredictionWriter, RunSummary
from lightning_lift.commands import COMMANDS, underscored
from lightning_lift.modules import ConvexModule  # noqa: F401  # so that short class names resolve
from lightning_lift.modules.checkpoints import read_checkpoint
from lightning_lift.parameterizations import names  # noqa: F401  # short names of the parameterizations
from lightning_lift.shipped import configuration, current_class_path

_TRACEBACK = "LIGHTNING_LIFT_TRACEBACK"
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
                f"--help: {', '.join(COMMANDS)}.",
            },
            args=args,
            run=run,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links the data's dimension to the model and adds ``--test_after_fit``."""
        parser.link_arguments("data.dim", "model.init_args.dim", apply_on="instantiate")
        parser.add_argument(
            "--test_after_fit",
            action=ActionYesNo,
            default=False,
            help="After fit, test the checkpoint of the best monitored metric (the last weights if none is).",
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
        """Parses the command line, in which configurations and classes may be named as ``shipped`` knows them."""
        if isinstance(args, dict | Namespace):
            self.config = parser.parse_object(args)
            return
        args = underscored(sys.argv[1:] if args is None else args)
        self.config = parser.parse_args(_with_shipped_names(args))

    def _parse_ckpt_path(self) -> None:
        subcommand = self.config.get("subcommand")
        path = self.config[subcommand].get("ckpt_path") if subcommand else None
        if path is None:
            super()._parse_ckpt_path()
            return
        stored = _checked_hyperparameters(str(path), subcommand)
        before = _flat(self.config[subcommand].get("model"))
        if stored:
            named = stored.pop("_class_path", None)
            model = stored if named is None else {"class_path": named, "dict_kwargs": stored}
            self.config = self.parser.parse_object({subcommand: {"model": model}}, self.config)
        after = _flat(self.config[subcommand].get("model"))
        for key in sorted(before.keys() & after.keys()):
            if before[key] != after[key] and key != "dim":  # dim is linked from the data
                rank_zero_warn(
                    f"model.{key}={before[key]!r} is replaced by the checkpoint's {after[key]!r}: a checkpoint brings "
                    "its own model settings."
                )

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """The trainer, with a rich progress bar and a run summary unless the configuration brings its own."""
        config = self._get(self.config_init, "trainer")
        callbacks = config["callbacks"] or []
        callbacks = list(callbacks) if isinstance(callbacks, list) else [callbacks]
        extra: list[tuple[type[Callback] | tuple[type[Callback], ...], Callback]] = [(RunSummary, RunSummary())]
        if config["enable_progress_bar"] is not False:
            extra.append((ProgressBar, RichProgressBar(refresh_rate=10)))
        if config["enable_model_summary"] is not False:
            extra.append((RichModelSummary, RichModelSummary()))
        if self.subcommand == "predict":
            extra.append((PredictionWriter, PredictionWriter()))
        callbacks += [new for kind, new in extra if not any(isinstance(old, kind) for old in callbacks)]
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def after_fit(self) -> None:
        """Tests the best checkpoint on request."""
        if not self._get(self.config, "test_after_fit"):
            return
        best = getattr(self.trainer.checkpoint_callback, "best_model_path", "")
        monitored = getattr(self.trainer.checkpoint_callback, "monitor", None)
        if best and monitored:
            self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best, weights_only=True, verbose=False)
        else:
            self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)


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


def _with_shipped_names(args: list[str]) -> list[str]:
    """Arguments in which a configuration's bare name is its path, and a class path of an earlier version today's."""
    named = []
    for before, arg in zip(["", *args], args, strict=False):
        flag, equals, value = arg.partition("=") if arg.startswith("-") else ("", "", arg)
        is_config = (flag if equals else before) in ("-c", "--config")
        named.append(flag + equals + (configuration(value) if is_config else current_class_path(value)))
    return named


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
    """Runs the command line.

    Errors that a user can mend (a bad value, a missing file) are printed in one line and end with status 1; with the
    environment variable LIGHTNING_LIFT_TRACEBACK=1 they are raised with their traceback.

    Args:
        args: the command line, or None for ``sys.argv``.
    """
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning 2.6 on torch 2.13
    arguments = sys.argv[1:] if args is None else args
    try:
        if isinstance(arguments, list) and arguments and arguments[0] in COMMANDS:
            importlib.import_module(COMMANDS[arguments[0]]).main(underscored(arguments[1:]))
            return
        LiftCLI(arguments)
    except (ValueError, FileNotFoundError, MisconfigurationException) as error:
        if os.environ.get(_TRACEBACK) == "1":
            raise
        sys.stderr.write(f"lightning-lift: error: {error}\n({_TRACEBACK}=1 shows where it was raised.)\n")
        raise SystemExit(1) from error
