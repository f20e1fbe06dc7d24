"""``lightning-lift compare``: parameterizations against each other on one task, over paired seeds, each tuned alike."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lightning_lift.commands.compare_options import from_options, name_list, parse
from lightning_lift.compare.build import make_data
from lightning_lift.compare.comparison import STAGES, PairedComparison
from lightning_lift.compare.directory import read_settings, sole_user
from lightning_lift.compare.engines import Engine, execute, given_up
from lightning_lift.compare.engines.local import LocalEngine
from lightning_lift.compare.engines.progress import RunProgress
from lightning_lift.compare.engines.slurm import read_run, write_plan
from lightning_lift.compare.faults import Lost
from lightning_lift.compare.plan import Settings


def main(args: Sequence[str]) -> None:
    """Run the command.

    Args:
        args: the arguments after ``compare``.

    Raises:
        ValueError: what the arguments, the configuration or the directory have wrong.
        FileNotFoundError: there is no such configuration, or no such file of data.
    """
    parsed = parse(args)
    if parsed.only is not None:
        _do_one(_stated_output(parsed, "--only"), parsed.only)
        return
    if parsed.report_only:
        stated = parsed.output is not None or not parsed.fit
        directory = _stated_output(parsed, "--report_only") if stated else from_options(parsed)[1].directory
        comparison = opened(directory, by_name=True)
        if parsed.metrics is not None:
            comparison.metrics = name_list(parsed.metrics)
        _write_report(comparison)
        return
    options, comparison = from_options(parsed)
    make_data(comparison.settings.config)  # what its constructor refuses, every run would meet
    with sole_user(comparison.directory):
        comparison.open()
        if parsed.retry_failed:
            print(f"{comparison.forget_failed()} failed runs are to be done again")
        if parsed.plan:
            _print_plan(comparison)
            return
        _run(comparison, options)
    _write_report(comparison)


def opened(directory: Path, *, by_name: bool = False) -> PairedComparison:
    """The comparison that a directory holds.

    Args:
        directory: where it was run.
        by_name: take its records as they are, whatever version made them; nothing can be run.

    Raises:
        ValueError: there is none.
    """
    content = read_settings(directory)
    settings = Settings.of_plain(content["settings"] | ({"config": {}} if by_name else {}))
    return PairedComparison(settings, directory, content["name"], metrics=content["metrics"])


def _run(comparison: PairedComparison, options: Mapping[str, Any]) -> None:
    with RunProgress() as progress, _engine(options) as engine:
        try:
            comparison.run(engine, progress)
        except KeyboardInterrupt:
            engine.close()
            progress.say(f"stopped; {comparison.counts()}. The same command goes on from there.")
            raise SystemExit(130) from None
        except RuntimeError as error:
            raise ValueError(str(error)) from error


def _engine(options: Mapping[str, Any]) -> Engine:
    if options["engine"] == "local":
        return LocalEngine(options["jobs"])
    from lightning_lift.compare.engines.ray import RayEngine

    return RayEngine(options["jobs"])


def _write_report(comparison: PairedComparison) -> None:
    from lightning_lift.compare.report import write_report  # it draws: not for --plan

    records = comparison.records()
    if not records:
        raise ValueError(f"{comparison.directory} has no run to report: call the command without --report_only.")
    written = write_report(comparison.directory, comparison.report_settings(), records)
    print(comparison.counts())
    for path in written:
        if path.parent == comparison.directory:  # the figures' files are too many to name
            print(f"wrote {path}")


def _print_plan(comparison: PairedComparison) -> None:
    specs = []
    for stage in STAGES:
        planned, missing = comparison.planned(stage), comparison.missing(stage)
        if planned is None or missing is None:
            print(f"{stage}: its runs are known when those above are done")
            continue
        specs += missing
        for run in planned:
            spec = run.spec
            rate = "config" if spec.learning_rate is None else f"{spec.learning_rate:g}"
            state = "missing" if run.record is None else run.record.outcome
            print(f"{stage:<7} {spec.arm:<32} lr {rate:<8} seed {spec.seed:<5} steps {spec.steps:<7} {state}")
    print(comparison.counts())
    if specs:
        written = write_plan(comparison.directory, specs)
        print(f"{len(specs)} runs; wrote " + ", ".join(str(path) for path in written))
    else:
        print("nothing is missing: call the command without --plan for the report")


def _do_one(directory: Path, index: int) -> None:
    """One line of the plan, in this process; a failed run ends with status 1, for the scheduler to see."""
    torch.set_num_threads(1)
    comparison = opened(directory)
    with sole_user(directory, shared=True):
        spec = read_run(directory, index)
        result = execute(spec, comparison.work)
        if isinstance(result, Lost):
            result = given_up(spec, comparison.work, result)
    if isinstance(result, Lost):
        raise ValueError(f"--only {index} could not be done and has no record: {result.reason}")
    print(f"{result.key}: {result.outcome}" + (f" ({result.error})" if result.error else ""))
    if result.outcome == "failed":
        raise SystemExit(1)


def _stated_output(parsed: argparse.Namespace, flag: str) -> Path:
    if parsed.output is None:
        raise ValueError(f"{flag} needs --output: the directory of the comparison.")
    return Path(parsed.output)
