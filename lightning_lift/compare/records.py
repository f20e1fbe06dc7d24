"""What one run of a comparison is (``RunSpec``), what it gave (``RunRecord``), and where that is kept."""

import dataclasses
import hashlib
import json
import math
import re
import types
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lightning_lift.files import whole_file

Purpose = Literal["tune", "final", "timing"]
Outcome = Literal["finished", "diverged", "failed"]
FORMAT = 1
MONITORED = ("val/nll", "val/loss")  # of records, and of modules, that do not state their own
_T = TypeVar("_T")


def monitored(metrics: Container[str], own: str | None = None) -> str | None:
    """Name of the validation metric by which ``best`` is chosen (lowest): the task's own, else None.

    Args:
        metrics: names, or a mapping by name, of what was logged.
        own: the task's ``selection_metric``; None where it is not known, for ``val/nll`` or ``val/loss``.
    """
    return next((name for name in (own, *MONITORED) if name is not None and name in metrics), None)


def without_modules(text: str) -> str:
    """Settings in JSON with the classes of this package by name alone: where they are imported from has changed.

    Args:
        text: JSON.
    """
    return re.sub(r'"(?:lightning_lift|datamodules)\.(?:\w+\.)*(\w+)"', r'"\1"', text)


# Arguments that records of earlier versions do not have, where they change nothing.
_LATER = {"intercept": False, "increasing": [], "decreasing": [], "strong_convexity_start": 1.0}
_LATER |= {"output_scale_start": 1.0}


@dataclass(frozen=True)
class RunSpec:
    """One run, wholly determined: the same spec gives the same numbers.

    Attributes:
        arm: label of the arm in tables and figures.
        purpose: ``tune`` chooses a learning rate, ``final`` enters the statistics, ``timing`` measures seconds alone.
        learning_rate: of the optimizer; None for the configuration's own.
        seed: of the network's start, the parameterization and the data stream.
        steps: optimizer steps.
        config: ``model``, ``data`` and ``trainer`` as plain settings (class_path, init_args), arm, rate and seed
            already in them.
    """

    arm: str
    purpose: Purpose
    learning_rate: float | None
    seed: int
    steps: int
    config: dict[str, Any] = field(hash=False)

    @property
    def key(self) -> str:
        """Name of the record's file, without its extension."""
        arm = re.sub(r"[^A-Za-z0-9_.=+-]+", "_", self.arm)
        rate = "config" if self.learning_rate is None else f"{self.learning_rate:g}"
        return f"{self.purpose}-{arm}-lr{rate}-steps{self.steps}-seed{self.seed:03d}"

    @property
    def label(self) -> str:
        """The run in words."""
        rate = "the configuration's rate" if self.learning_rate is None else f"lr {self.learning_rate:g}"
        return f"{self.purpose} {self.arm}, {rate}, seed {self.seed}"

    @property
    def fingerprint(self) -> str:
        """The hash of everything that determines the numbers: two specs with one key must agree in it."""
        text = json.dumps([FORMAT, self.steps, self.seed, _without_later(self.config)], sort_keys=True, default=str)
        text = without_modules(text)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_later(settings: Any) -> Any:
    """Settings as an earlier version had them."""
    if isinstance(settings, dict):
        settings = {key: value for key, value in settings.items() if key not in _LATER or value != _LATER[key]}
    return _inside(settings, _without_later)


@dataclass
class RunRecord:
    """What a run gave.

    Attributes:
        key: of the spec.
        fingerprint: of the spec.
        arm: label of the arm.
        purpose: why it was run.
        learning_rate: of the optimizer; None for the configuration's own.
        seed: of network and data.
        steps: optimizer steps asked for.
        outcome: ``finished``; ``diverged`` (the loss has exploded or a metric is not finite: an outcome, not a fault);
            ``failed`` (an error, which stands in ``error``).
        error: kind and message of what went wrong, None otherwise.
        engine: ``lightning``; ``vectorized`` in records of earlier versions that trained all seeds of an arm in one
            batch.
        metrics: by checkpoint, ``best`` (lowest monitored validation metric) and ``last``: metric name to number
            (``test/...`` and ``val/...``).
        curves: name to list of numbers, all as long as ``step`` (optimizer steps done); ``seconds`` (of training, from
            the first step), ``val/nll``, ``shoulder/occupancy``, ``latent/step``, ... NaN where not measured.
        timings: ``fit_seconds``, ``seconds_per_step`` (training steps alone, validation left out); of vectorized runs
            the batch's seconds over its number of seeds.
        num_parameters: trained numbers of the module, the parameterization's included.
        start_hash: of the network's weights before the first step, the same in each arm of a seed.
        data_hash: of the first training batches, likewise.
        metric: the task's ``selection_metric``, by which ``best`` was chosen; None where it states none.
        headlines: the task's test metrics that a report is about.
        checkpoints: ``best``, ``last`` and, where kept, ``step000100``...: paths relative to the store's directory.
        versions: of the packages that determine numbers.
        config: of the spec.
    """

    key: str
    fingerprint: str
    arm: str
    purpose: Purpose
    learning_rate: float | None
    seed: int
    steps: int
    outcome: Outcome
    error: str | None = None
    engine: Literal["lightning", "vectorized"] = "lightning"
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    num_parameters: int = 0
    start_hash: str = ""
    data_hash: str = ""
    metric: str | None = None
    headlines: list[str] = field(default_factory=list)
    checkpoints: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: RunSpec, outcome: Outcome, **results: Any) -> "RunRecord":
        """A record of this spec.

        Args:
            spec: the run.
            outcome: how it ended.
            results: the other attributes.
        """
        shared = {name: getattr(spec, name) for name in ("key", "fingerprint", "arm", "purpose", "learning_rate")}
        return cls(**shared, seed=spec.seed, steps=spec.steps, config=spec.config, outcome=outcome, **results)

    @property
    def spec(self) -> RunSpec:
        """The run."""
        return RunSpec(self.arm, self.purpose, self.learning_rate, self.seed, self.steps, self.config)

    def reproducible(self) -> dict[str, Any]:
        """Everything but measured times: what two runs of one spec must have in common.

        NaN and infinity are strings, as in the file, so that two of them compare as equal.
        """
        plain: dict[str, Any] = _encoded(dataclasses.asdict(self))
        del plain["timings"]
        plain["curves"].pop("seconds", None)
        return plain


class RecordStore:
    """One JSON file a run under ``DIRECTORY/records``, each written whole or not at all.

    Args:
        directory: of the comparison; made when the first record is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str) -> Path:
        """Where the record of this key lies, or would lie."""
        return self.directory / "records" / f"{key}.json"

    def write(self, record: RunRecord) -> None:
        """Write a record under a temporary name, then rename it."""
        self.path(record.key).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self.path(record.key)) as temporary:
            temporary.write_text(json.dumps(_encoded(dataclasses.asdict(record)), indent=1, allow_nan=False) + "\n")

    def read(self, key: str) -> RunRecord:
        """The record of this key.

        Raises:
            ValueError: the file is no record, or one of another format.
        """
        path = self.path(key)
        try:
            return from_plain(RunRecord, _decoded(json.loads(path.read_text())))
        except ValueError as error:  # of JSON and of text that is none, too
            raise ValueError(
                f"{path} is no record of a run ({error}): delete it, and the run is done again."
            ) from error

    def get(self, spec: RunSpec) -> RunRecord | None:
        """The record of this spec, or None where it is still to be run.

        Args:
            spec: the run; without ``config`` whatever is there under its key.

        Raises:
            ValueError: the directory holds a run of this name with other settings.
        """
        if not self.path(spec.key).is_file():
            return None
        record = self.read(spec.key)
        # Not the record's own fingerprint: earlier versions made theirs in another way.
        if spec.config and record.spec.fingerprint != spec.fingerprint:
            raise ValueError(
                f"{self.path(spec.key)} was run with other settings than this comparison has now: give another "
                "--output, or delete the directory to start anew."
            )
        return record

    def all(self) -> list[RunRecord]:
        """Every record, by key."""
        paths = sorted((self.directory / "records").glob("*.json"))
        # A killed process leaves its temporary file, whose name starts with a dot.
        return [self.read(path.stem) for path in paths if not path.name.startswith(".")]


def from_plain(cls: type[_T], plain: Any) -> _T:
    """An instance of a dataclass from a mapping of its fields, each of the type that the class states.

    Args:
        cls: the dataclass.
        plain: what JSON gave.

    Raises:
        ValueError: it is no mapping, or a field is missing, not known, or of another type.
    """
    if not isinstance(plain, Mapping):
        raise ValueError(f"it holds a {type(plain).__name__}, not a mapping")
    kinds = get_type_hints(cls)
    for name, value in plain.items():
        if name in kinds and not _fits(value, kinds[name]):
            text = repr(value)
            raise ValueError(f"its {name} is {text if len(text) <= 60 else text[:57] + '...'}")
    try:
        return cls(**plain)
    except TypeError as error:  # names the field that is missing or not known
        raise ValueError(str(error).partition(" ")[2]) from error


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, with those of its parts; whole numbers are floats too."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in parts)
    if origin is Literal:
        return value in parts
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if origin in (list, tuple):
        return isinstance(value, origin) and all(_fits(item, parts[0]) for item in value)
    if origin in (int, float):
        return isinstance(value, int if origin is int else int | float) and not isinstance(value, bool)
    return origin is Any or isinstance(value, origin)


def _encoded(value: Any) -> Any:
    """Standard JSON has no NaN or infinity: they are written as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return _inside(value, _encoded)


def _decoded(value: Any) -> Any:
    return float(value) if value in ("Infinity", "-Infinity", "NaN") else _inside(value, _decoded)


def _inside(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with every item of it changed, if it is a mapping or a list."""
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    return [change(item) for item in value] if isinstance(value, list | tuple) else value
