"""What the command line needs of the data modules: short names, help texts, `dim` before `setup`."""

import inspect
import re

import pytest
from lightning import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser

from lightning_lift import datamodules
from lightning_lift.datamodules import DensityDataModule

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
    shown = "".join(capsys.readouterr().out.split())  # the help breaks its lines in hyphenated words too
    documented = next(base.__doc__ for base in cls.__mro__ if "__init__" in vars(base))
    for name in inspect.signature(cls).parameters:
        text = re.search(rf"^        {name}: (.+)$", documented, flags=re.MULTILINE)
        assert f"--data.{name}" in shown and text, f"{name} is not documented"
        assert "".join(text.group(1).split()) in shown, f"{name} is not documented"


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
