"""The report of a comparison: a page, a Markdown file with its figures, and tables of all runs and curves."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_lift.compare.records import RunRecord
from lightning_lift.compare.report.pages import FIGURES, to_html, to_markdown
from lightning_lift.compare.report.sections import make_content
from lightning_lift.files import whole_file

_WHO = ("arm", "purpose", "learning_rate", "seed", "key")


def write_report(directory: Path, settings: Mapping[str, Any], records: Sequence[RunRecord]) -> list[Path]:
    """Write every file of the report, each whole or not at all.

    ``report.html`` stands alone; ``report.md`` shows the files in ``figures`` (PNG for reading, SVG for printing);
    ``runs.csv`` and ``runs.parquet`` have one row a run, ``curves.parquet`` one an evaluation.

    Args:
        directory: of the comparison.
        settings: of the comparison; see ``sections.make_content``. Any of them may be absent.
        records: of the runs so far, of any purpose and outcome; the report says which are missing.

    Returns:
        The files, the page first.
    """
    content = make_content(settings, records)
    written = [_write_text(directory / "report.html", to_html(content))]
    written.append(_write_text(directory / "report.md", to_markdown(content)))
    runs, curves = runs_frame(records), curves_frame(records)
    written.append(_write_text(directory / "runs.csv", runs.to_csv(index=False)))
    for name, frame in (("runs", runs), ("curves", curves)):
        with whole_file(directory / f"{name}.parquet") as temporary:
            frame.to_parquet(temporary, index=False)
        written.append(directory / f"{name}.parquet")
    # Figures of an earlier report, of metrics that are no more, would be taken for this one's.
    kept = {f"{picture.name}.{kind}" for picture in content.pictures for kind in ("png", "svg")}
    for path in (directory / FIGURES).glob("*.*") if (directory / FIGURES).is_dir() else ():
        if path.suffix in (".png", ".svg") and path.name not in kept:
            path.unlink()
    for picture in content.pictures:
        with whole_file(directory / FIGURES / f"{picture.name}.png") as temporary:
            temporary.write_bytes(picture.png)
        written.append(directory / FIGURES / f"{picture.name}.png")
        written.append(_write_text(directory / FIGURES / f"{picture.name}.svg", picture.svg))
    return written


def runs_frame(records: Sequence[RunRecord]) -> pd.DataFrame:
    """One row a run: what it is, how it ended, every metric as ``best/test/nll``, timings, hashes, versions.

    Args:
        records: of any purpose.
    """
    columns = ["arm", "purpose", "learning_rate", "seed", "steps", "outcome", "error", "engine", "num_parameters"]
    hashes = ["start_hash", "data_hash", "fingerprint", "key"]
    rows = []
    for record in records:
        row: dict[str, Any] = {name: getattr(record, name) for name in columns}
        for checkpoint, metrics in sorted(record.metrics.items()):
            row |= {f"{checkpoint}/{name}": float(value) for name, value in metrics.items()}
        row |= {name: float(value) for name, value in record.timings.items()}
        row |= {name: getattr(record, name) for name in hashes}
        row |= {f"version/{name}": value for name, value in record.versions.items()}
        row |= {f"checkpoint/{name}": value for name, value in record.checkpoints.items()}
        rows.append(row)
    frame = pd.DataFrame(rows, columns=None if rows else [*columns, *hashes])
    frame["learning_rate"] = frame["learning_rate"].astype(
        "float64"
    )  # None, of all rows, is of no type that files have
    frame["error"] = frame["error"].astype("string")
    return frame


def curves_frame(records: Sequence[RunRecord]) -> pd.DataFrame:
    """One row an evaluation of a run: the run, then each curve as a column.

    Args:
        records: of any purpose.

    Raises:
        ValueError: the curves of a record are not equally long.
    """
    names = list(dict.fromkeys(name for record in records for name in record.curves))
    columns: dict[str, list[Any]] = {name: [] for name in dict.fromkeys([*_WHO, "step", *names])}
    for record in records:
        lengths = {name: len(curve) for name, curve in record.curves.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"the curves of {record.key} are not equally long ({lengths}): delete its record and run it again."
            )
        points = len(record.curves.get("step", ()))
        for name in _WHO:
            columns[name] += [getattr(record, name)] * points
        for name in names:
            columns[name] += record.curves.get(name, [math.nan] * points) if points else []
    frame = pd.DataFrame(columns)
    kinds = {name: "float64" for name in ["learning_rate", *names]} | {"step": "int64"}
    return frame.astype(kinds)


def _write_text(path: Path, text: str) -> Path:
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
