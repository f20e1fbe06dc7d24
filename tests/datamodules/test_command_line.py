"""What the command line needs of the data modules: short names, help texts, `dim` before `setup`."""

import inspect
import re

import pytest
import torch
from lightning import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser

from lightning_lift import datamodules
from lightning_lift.datamodules import (
    DensityDataModule,
    GumbelDataModule,
    MoonsDataModule,
    ProductDataModule,
    SampledDataModule,
)

CONCRETE = [
    getattr(datamodules, name)
    for name in datamodules.__all__
    if name.endswith("DataModule")
    and name.removesuffix("DataModule") not in ("Density", "Labelled", "Sampled", "OneDimensional")
]


def parser() -> LightningArgumentParser:
    result = LightningArgumentParser()
    result.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    return result


def build(*arguments: str) -> DensityDataModule:
    return parser().instantiate(parser().parse_args(list(arguments))).data


@pytest.mark.parametrize("cls", CONCRETE)
def test_short_names_and_documented_arguments(cls, capsys) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([f"--data.help={cls.__name__}"])
    text = capsys.readouterr().out
    shown = "".join(text.split())  # the help breaks its lines in hyphenated words too
    documented = "\n".join(base.__doc__ or "" for base in cls.__mro__ if "__init__" in vars(base))
    names = set(re.findall(r"--data\.(\w+)", text)) - {"help"}
    assert names >= {"batch_size", "data_seed"}
    asked = {name for name, p in inspect.signature(cls).parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert names >= {name for name in asked if not name.startswith("_")}
    if issubclass(cls, SampledDataModule):
        shared = {"batches_per_epoch", "num_train", "num_val", "num_test", "num_calibration", "eval_batch_size"}
        assert names >= shared and not names & {"name"}
    for name in names:
        line = re.search(rf"^        {name}: (.+)$", documented, flags=re.MULTILINE)
        assert line and "".join(line.group(1).split()) in shown, f"{name} is not documented"


def test_instantiation_with_overridden_arguments() -> None:
    arguments = ["--data=GumbelDataModule", "--data.batch_size=32", "--data.num_train=64"]
    data = build(*arguments)
    assert data.dim == 1 and data.batch_size == 32 and len(data.train_dataloader()) == 2


def test_columns_by_name_and_position_from_a_flag() -> None:
    arguments = ["--data=TabularDataModule", "--data.table=load_iris", "--data.columns=['petal length (cm)', 0]"]
    data = build(*arguments)
    assert data.columns == ["petal length (cm)", "sepal length (cm)"] and data.dim == 2


def test_standardize_from_a_flag() -> None:
    arguments = ["--data=TabularDataModule", "--data.table=load_iris", "--data.standardize=false"]
    assert build(*arguments).log_scale == 0.0


def test_types_and_defaults_of_arguments_handed_on() -> None:
    data = build("--data=MoonsDataModule", "--data.num_val=12", "--data.noise=0.5")
    assert data.hparams["num_val"] == 12 and data.hparams["num_train"] is None and data.hparams["batch_size"] == 256
    with pytest.raises(SystemExit):
        build("--data=MoonsDataModule", "--data.num_val=few")


@pytest.mark.parametrize("cls", [MoonsDataModule, ProductDataModule, GumbelDataModule])
def test_hyperparameters_hold_every_resolved_value(cls) -> None:
    """In Python, too: what a checkpoint needs to make the data module again."""
    data = cls(num_val=12, data_seed=3)
    signature = inspect.signature(SampledDataModule).parameters
    defaults = {name: p.default for name, p in signature.items() if p.default is not p.empty}
    own = {name: p.default for name, p in inspect.signature(cls).parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert dict(data.hparams) == own | defaults | {"num_val": 12, "data_seed": 3}
    assert dict(data.hparams_initial) == dict(data.hparams)
    assert torch.equal(cls(**data.hparams).split("val"), data.split("val"))


def test_hyperparameters_that_are_left_out_stay_out() -> None:
    class Own(MoonsDataModule):
        def __init__(self, note: object = None, **kwargs: object) -> None:
            super().__init__(**kwargs)
            self.hparams.clear()
            self.save_hyperparameters(ignore=["note", "num_calibration"])

    data = Own(note=object(), noise=0.5)
    assert {"note", "num_calibration"}.isdisjoint(data.hparams)
    assert data.hparams["noise"] == 0.5 and data.hparams["num_val"] == 10000
