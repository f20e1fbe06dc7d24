import functools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn

from lightning_lift.cli import LiftCLI, main
from lightning_lift.commands._landscape_runs import find_runs
from lightning_lift.commands.rescale import rescale_checkpoint
from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.modules.checkpoints import load_module, named_modules, read_checkpoint
from lightning_lift.modules.factories import factory
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import DirectSoftplus, Parameterization
from lightning_lift.partition import Partition
from lightning_lift.trusted import check_arguments, read_parts, resolve_class

CHECKPOINT = Path(__file__).parents[1] / "fixtures" / "ebm_lift.ckpt"


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there as soon as anything hostile has run: by a call, or by importing ``hostile_module``."""
    path = tmp_path / "ran"
    code = f"open({str(path)!r}, 'w')\nclass Hostile: pass\ndef function(*a, **k): return 1.0\n"
    (tmp_path / "hostile_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return path


def popen(marker: Path) -> dict[str, Any]:
    return {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(marker)]}}


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a program": popen,
    "an import": lambda marker: {"class_path": "hostile_module.Hostile", "init_args": {}},
    "a function": lambda marker: {"class_path": "os.system", "init_args": {"command": f"touch {marker}"}},
    "an alias in our package": lambda marker: {"class_path": "lightning_lift.files.os.system", "init_args": {}},
    "an attribute of our package": lambda marker: {"class_path": "lightning_lift.files.os", "init_args": {}},
    "a class of another kind": lambda marker: {"class_path": "lightning_lift.modules.LogConcaveEBM"},
    "a text": lambda marker: "hostile_module.Hostile",
    "a file of settings": lambda marker: "hostile.yaml",
    "a nested program": lambda marker: {
        "class_path": "lightning_lift.parameterizations.Lift",
        "init_args": {"body_widths": [popen(marker)]},
    },
    "a nested import": lambda marker: {
        "class_path": "lightning_lift.parameterizations.Lift",
        "init_args": {"body_widths": {"class_path": "hostile_module.Hostile"}},
    },
}


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    checkpoint = torch.load(CHECKPOINT, weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "hostile.ckpt")
    return tmp_path / "hostile.ckpt"


READERS: dict[str, Callable[[Path], object]] = {
    "load_from_checkpoint": lambda path: LogConcaveEBM.load_from_checkpoint(path, weights_only=True),
    "load_module": load_module,
    "rescale": lambda path: rescale_checkpoint(path, path.with_name("out.ckpt")),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "slot", ["network", "parameterization", "partition", "evaluation", "optimizer", "lr_scheduler"]
)
@pytest.mark.parametrize("value", HOSTILE)
def test_a_checkpoint_runs_nothing(value: str, slot: str, reader: str, tmp_path: Path, marker: Path) -> None:
    path = changed(tmp_path, lambda c: c["hyper_parameters"].update({slot: HOSTILE[value](marker)}))
    with pytest.raises(ValueError, match=f"hostile.ckpt.*{slot}"):
        READERS[reader](path)
    assert not marker.exists()


WHOLE: dict[str, Callable[[dict[str, Any], Path], object]] = {
    "instantiator": lambda c, m: c["hyper_parameters"].update(_instantiator="hostile_module.function"),
    "class path": lambda c, m: c["hyper_parameters"].update(_class_path="hostile_module.Hostile"),
    "class path that is a program": lambda c, m: c["hyper_parameters"].update(
        _class_path="subprocess.Popen", args="ls"
    ),
    "parser's keys": lambda c, m: c["hyper_parameters"].update(class_path="hostile_module.Hostile", init_args={}),
    "dotted key": lambda c, m: c["hyper_parameters"].update({"partition.class_path": "hostile_module.Hostile"}),
    "number for a key": lambda c, m: c["hyper_parameters"]["partition"]["init_args"].update({3: popen(m)}),
    "unknown argument": lambda c, m: c["hyper_parameters"].update(other=popen(m)),
    "scheduler's function": lambda c, m: c["hyper_parameters"].update(
        lr_scheduler={
            "class_path": "torch.optim.lr_scheduler.LambdaLR",
            "init_args": {"lr_lambda": "hostile_module.function"},
        }
    ),
}


@pytest.mark.parametrize("part", WHOLE)
def test_no_part_of_the_hyperparameters_runs_anything(part: str, tmp_path: Path, marker: Path) -> None:
    path = changed(tmp_path, lambda c: WHOLE[part](c, marker))
    for read in (load_module, read_checkpoint):
        with pytest.raises(ValueError, match=r"hostile\.ckpt"):
            read(path)
    assert not marker.exists()


@pytest.mark.usefixtures("in_an_empty_folder")
@pytest.mark.parametrize("value", ["a program", "an import", "a text"])
def test_neither_does_the_command_line(value: str, tmp_path: Path, marker: Path) -> None:
    path = changed(tmp_path, lambda c: c["hyper_parameters"].update(partition=HOSTILE[value](marker)))
    with pytest.raises(ValueError, match=r"hostile\.ckpt.*partition"):
        LiftCLI(["test", "--model", "LogConcaveEBM", "--data", "GumbelDataModule", "--ckpt_path", str(path)])
    assert not marker.exists()


@pytest.mark.usefixtures("in_an_empty_folder")
@pytest.mark.parametrize("text", ["class_path='hostile_module.Hostile'", 7])
def test_neither_does_the_text_of_an_error(
    text: object, tmp_path: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quadrature = {"class_path": "lightning_lift.partition.Quadrature", "init_args": {"nope": text}}
    path = changed(tmp_path, lambda c: c["hyper_parameters"].update(partition=quadrature))
    with pytest.raises(SystemExit):
        main(["test", "--model", "LogConcaveEBM", "--data", "GumbelDataModule", "--ckpt_path", str(path)])
    said = capsys.readouterr().err.partition("error: ")[2].splitlines()[0]
    assert "hostile.ckpt" in said and "nope" in said
    assert not marker.exists()


@pytest.mark.parametrize("key", ["hparams", "module_arguments"])
def test_what_lightning_kept_for_older_versions_is_not_obeyed(key: str, tmp_path: Path, marker: Path) -> None:
    def change(checkpoint: dict[str, Any]) -> None:
        checkpoint[key] = {"_instantiator": "hostile_module.function", "evaluation": popen(marker)}
        del checkpoint["hyper_parameters"]["evaluation"]

    assert LogConcaveEBM.load_from_checkpoint(changed(tmp_path, change)).evaluation is None
    assert not marker.exists()


@pytest.mark.parametrize("change", [{"_class_path": "hostile_module.Hostile"}, {"_class_path": "subprocess.Popen"}, {}])
def test_the_landscape_runs_no_data_that_a_checkpoint_names(
    change: dict[str, Any], tmp_path: Path, marker: Path
) -> None:
    for step in (1, 2, 3):
        path = changed(
            tmp_path, lambda c: c["datamodule_hyper_parameters"].update({"scale": popen(marker), "args": "ls"} | change)
        )
        path.rename(tmp_path / f"{step}.ckpt")
    with pytest.raises(ValueError, match=r"\.ckpt: data"):
        find_runs([str(tmp_path)])
    assert not marker.exists()


def test_the_landscape_runs_no_data_that_a_record_names(tmp_path: Path, marker: Path) -> None:
    shutil.copytree(CHECKPOINT.parent / "compare", tmp_path / "compare")
    for path in (tmp_path / "compare" / "records").iterdir():
        record = json.loads(path.read_text())
        record["config"]["data"] = popen(marker)
        path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"compare: data.*subprocess\.Popen"):
        find_runs([str(tmp_path / "compare")])
    assert not marker.exists()


def test_a_new_process_is_told_what_to_import() -> None:
    assert {"lightning_lift.partition", "torch.optim", "torch.optim.lr_scheduler"} < set(named_modules(CHECKPOINT))


def test_data_modules_run_nothing_either(tmp_path: Path, marker: Path) -> None:
    assert GumbelDataModule.load_from_checkpoint(CHECKPOINT, weights_only=True).batch_size == 32
    for name, value in (("_instantiator", "hostile_module.function"), ("scale", popen(marker))):
        path = changed(tmp_path, lambda c, n=name, v=value: c["datamodule_hyper_parameters"].update({n: v}))
        with pytest.raises(ValueError, match=rf"hostile\.ckpt.*{name}"):
            GumbelDataModule.load_from_checkpoint(path)
    assert not marker.exists()


class Own(ICNN):
    """A user's network: its module is imported already."""


class WithSlots(nn.Module):
    def __init__(
        self,
        inner: Callable[[], Parameterization] | None = None,
        many: "list[nn.Module] | dict[str, Any]" = (),  # type: ignore[assignment]
        call: Callable[[float], float] = abs,
        free: Any = None,
        name: str = "",
    ) -> None:
        super().__init__()


def test_what_may_be_named() -> None:
    assert resolve_class("x", "lightning_lift.modules.LogConcaveEBM", (L.LightningModule,)) is LogConcaveEBM
    assert resolve_class("x", f"{__name__}.Own", (ConvexNetwork,)) is Own
    assert resolve_class("x", "torch.optim.lr_scheduler.StepLR", (torch.optim.lr_scheduler.LRScheduler,))
    assert resolve_class("x", "datamodules.GumbelDataModule", (L.LightningDataModule,)) is GumbelDataModule
    moved = "lightning_lift.partition.where_it_was_once.Quadrature"  # still in the face of its package
    assert issubclass(resolve_class("x", moved, (Partition,)), Partition)
    made = factory("network", {"class_path": f"{__name__}.Own", "init_args": {"widths": [3]}}, ConvexNetwork)(2)
    assert isinstance(made, Own)
    for path in ("lightning_lift.Nothing", "lightning_lift.nowhere.Nothing", "torch.optim.Nothing"):
        with pytest.raises(ValueError, match="Nothing' is no class"):
            resolve_class("x", path, (object,))
    with pytest.raises(ValueError, match=r"--import my_package\.tasks"):
        resolve_class("x", "my_package.tasks.Task", (L.LightningModule,))
    for path in ("", "Popen", "a..B", ".relative.Class", "lightning_lift./tmp/x.Class", 3):
        with pytest.raises(ValueError, match="no import path"):
            resolve_class("x", path, (object,))


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({"inner": {"class_path": "lightning_lift.parameterizations.names.pgd"}}, True),
        ({"inner": {"class_path": "lightning_lift.networks.ICNN"}}, False),
        ({"many": [{"class_path": "torch.nn.modules.linear.Linear", "init_args": {"in_features": 1}}]}, True),
        ({"many": {"a": {"class_path": "subprocess.Popen"}}}, False),
        ({"many": {"a.b": 1}}, False),
        ({"call": "os.system"}, False),
        ({"call": {"class_path": "functools.partial"}}, False),
        ({"free": {"class_path": "torch.nn.modules.linear.Linear"}}, False),
        ({"free": [1, {"a": "os.system"}], "name": "os.system"}, True),
        ({"free": '{"class_path": "subprocess.Popen"}', "name": "a: b"}, False),  # a parser would read the text
        ({"free": {"a": [r'{"class\u005fpath": "subprocess.Popen"}']}}, False),
        ({"unknown": "<<: {class_path: subprocess.Popen, when: 2001-99-99}"}, False),
        ({"free": ["rate: 5", "[m]", "{x", "2001-99-99"]}, True),
        ({"class_path": "x.Y"}, False),
        ({"inner": {"class_path": "lightning_lift.parameterizations.Lift", "more": 1}}, False),
    ],
)
def test_arguments_by_the_annotation_of_their_place(arguments: Mapping[str, Any], allowed: bool) -> None:
    if allowed:
        check_arguments(WithSlots, arguments)
    else:
        with pytest.raises(ValueError):
            check_arguments(WithSlots, arguments)


# -- damaged files ----------------------------------------------------------------------------------------------------

DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no state_dict": (lambda c: c.pop("state_dict"), "state_dict"),
    "list for the state_dict": (lambda c: c.update(state_dict=[1]), "state_dict.*list"),
    "no hyper_parameters": (lambda c: c.pop("hyper_parameters"), "_class_path"),
    "list for hyper_parameters": (lambda c: c.update(hyper_parameters=[1]), "hyper_parameters.*list"),
    "text for the stamp": (lambda c: c.update(lightning_lift="0.1"), "lightning_lift.*str"),
    "no format": (lambda c: c.update(lightning_lift={}), "format None"),
    "mapping for optimizer_states": (lambda c: c.update(optimizer_states={}), "optimizer_states.*dict"),
    "list for loops": (lambda c: c.update(loops=[]), "loops.*list"),
    "number for a loop": (lambda c: c["loops"].update(fit_loop=3), r"loops\['fit_loop'\] is of type int"),
    "optimizer without groups": (
        lambda c: c["optimizer_states"][0].pop("param_groups"),
        "optimizer_states.*param_groups",
    ),
    "text for global_step": (lambda c: c.update(global_step="7"), "global_step.*str"),
    "weights as integers": (
        lambda c: c["state_dict"].update({k: v.long() for k, v in c["state_dict"].items() if torch.is_tensor(v)}),
        "damaged.*int64",
    ),
    "a number for a tensor": (
        lambda c: c["state_dict"].update({"network.layers.0.bias": 1.0}),
        "network.layers.0.bias is a float",
    ),
    "units of another type": (
        lambda c: c["state_dict"]["_extra_state"].update(location=torch.zeros(3)),
        r"_extra_state\.location has shape \(3,\)",
    ),
    "an argument of another type": (lambda c: c["hyper_parameters"].update(dim="two"), "dim='two'"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_checkpoint_is_one_sentence_with_its_name(case: str, tmp_path: Path) -> None:
    change, message = DAMAGED[case]
    path = changed(tmp_path, change)
    with pytest.raises(ValueError, match=rf"(?s)hostile\.ckpt.*{message}") as error:
        load_module(path)
    assert "\n" not in str(error.value)
    if case != "no hyper_parameters":  # then the class that the user names takes its defaults
        with pytest.raises(ValueError, match=rf"(?s)hostile\.ckpt.*{message}"):
            LogConcaveEBM.load_from_checkpoint(path)


RESUMED = [
    "no state_dict",
    "text for the stamp",
    "number for a loop",
    "optimizer without groups",
    "weights as integers",
    "a number for a tensor",
    "units of another type",
]


@pytest.mark.usefixtures("in_an_empty_folder")
@pytest.mark.parametrize("verb", ["fit", "test"])
@pytest.mark.parametrize("case", RESUMED)
def test_a_trainer_names_the_damaged_file_too(case: str, verb: str, tmp_path: Path) -> None:
    change, message = DAMAGED[case]
    module = LogConcaveEBM.load_from_checkpoint(CHECKPOINT)
    options = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(accelerator="cpu", max_steps=30, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"(?s)hostile\.ckpt.*{message}") as error:
        getattr(trainer, verb)(module, datamodule=GumbelDataModule(batch_size=32), ckpt_path=changed(tmp_path, change))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("in_an_empty_folder")
@pytest.mark.parametrize("case", ["no state_dict", "weights as integers", "optimizer without groups"])
def test_the_command_line_names_the_damaged_file_too(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(tmp_path, DAMAGED[case][0])
    data = ["--data", "GumbelDataModule", "--data.batch_size=32", "--trainer.accelerator=cpu", "--trainer.logger=false"]
    with pytest.raises(SystemExit):
        main(["fit", "--model", "LogConcaveEBM", *data, "--trainer.max_steps=30", "--ckpt_path", str(path)])
    printed = capsys.readouterr().err
    assert "error: " in printed
    assert "hostile.ckpt" in printed.split("error: ")[1].splitlines()[0]


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    for content in (CHECKPOINT.read_bytes()[:1000], b"", b"no zip"):
        (tmp_path / "cut.ckpt").write_bytes(content)
        with pytest.raises(ValueError, match=r"cut\.ckpt cannot be read"):
            LogConcaveEBM.load_from_checkpoint(tmp_path / "cut.ckpt")
    with pytest.raises(FileNotFoundError, match=r"none\.ckpt: no such file"):
        read_parts(tmp_path / "none.ckpt")


def test_other_arguments_still_replace_stored_ones() -> None:
    module = LogConcaveEBM.load_from_checkpoint(CHECKPOINT, map_location="cpu", learning_rate=1e-4)
    assert module.learning_rate == 1e-4
    with CHECKPOINT.open("rb") as file:
        assert LogConcaveEBM.load_from_checkpoint(file, "cpu").dim == 1
    with pytest.raises(ValueError, match=r"another parameterization.*DirectSoftplus"):
        LogConcaveEBM.load_from_checkpoint(CHECKPOINT, parameterization=functools.partial(DirectSoftplus, beta=2.0))
