"""The report of a comparison: a page, a Markdown file with its figures, and tables of all runs and curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lightning_lift.compare.records import RunRecord
from lightning_lift.compare.report.pages import FIGURES, to_html, to_markdown
from lightning_lift.compare.report.sections import make_content
from lightning_lift.files import whole_file

_WHO = {"arm": "str", "purpose": "str", "learning_rate": "float64", "seed": "int64", "key": "str"}


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
    runs, curves = runs_frame(records), curves_frame(records)
    files: dict[str, str | bytes] = {
        "report.html": to_html(content),
        "report.md": to_markdown(content),
        "runs.csv": runs.to_csv(index=False),
        "runs.parquet": runs.to_parquet(index=False),
        "curves.parquet": curves.to_parquet(index=False),
    }
    for picture in content.pictures:
        files |= {f"{FIGURES}/{picture.name}.png": picture.png, f"{FIGURES}/{picture.name}.svg": picture.svg}
    # Figures of an earlier report, of metrics that are no more, would be taken for this one's.
    for path in [*(directory / FIGURES).glob("*.png"), *(directory / FIGURES).glob("*.svg")]:
        if f"{FIGURES}/{path.name}" not in files:
            path.unlink()
    for name, data in files.items():
        with whole_file(directory / name) as temporary:
            temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    return [directory / name for name in files]


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
    # None, of all rows, is of no type that files have.
    return frame.astype({"learning_rate": "float64", "error": "string"})


def curves_frame(records: Sequence[RunRecord]) -> pd.DataFrame:
    """One row an evaluation of a run: the run, then each curve as a column.

    Args:
        records: of any purpose.

    Raises:
        ValueError: the curves of a record are not equally long.
    """
    rows = []
    for record in records:
        lengths = {name: len(curve) for name, curve in record.curves.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"the curves of {record.key} are not equally long ({lengths}): delete its record and run it again."
            )
        who = {name: getattr(record, name) for name in _WHO}
        points = zip(*record.curves.values(), strict=True)
        rows += [who | dict(zip(record.curves, point, strict=True)) for point in points]
    frame = pd.DataFrame(rows, columns=None if rows else [*_WHO, "step"])
    return frame.astype(dict.fromkeys(frame.columns, "float64") | _WHO | {"step": "int64"})
