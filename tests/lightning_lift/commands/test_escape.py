import csv
from pathlib import Path

import numpy as np
import pytest

from lightning_lift.cli import main


def test_prints_the_tables_and_writes_three_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--potential", "shoulder", "--paths", "200", "--levels", "2,1", "--jitter", "1"]
    main(["escape", *options, "--sigma_s", "0.1,0.2", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "Mean first-passage time, shoulder" in printed
    assert "by the factor 0.5 here), not the order" in " ".join(printed.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["escape.csv", "escape.npz", "escape.png"]
    with np.load(tmp_path / "escape.npz") as arrays:
        assert arrays["levels"][:2, 0].tolist() == [1.0, 2.0]
        np.testing.assert_allclose(arrays["arm_s2"][:, 1], 2.0 * arrays["arm_s2"][:, 0])
        # one order in sigma_s for both, and constants that stand as the noises do, in the limit of small noise
        scaled = arrays["arm_log_time"] * arrays["sigma_s"][:, None] ** 2
        np.testing.assert_allclose(scaled[0], [2.0, 1.0], rtol=0.05)
        columns, levels = list(arrays["columns"]), arrays["levels"]
    with (tmp_path / "escape.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["log_time"]) for row in rows] == levels[:, columns.index("log_time")].tolist()
    assert rows[0]["paths"] == "200"
    assert rows[-1]["paths"] == "nan"  # small noise is not simulated


def test_censoring_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["escape", "--paths", "50", "--levels", "2", "--max_time", "2", "--output", str(tmp_path)])
    assert "of 50 paths were not out at time 2" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--levels", "a,b"], "--levels a,b: give numbers"),
        (["--levels", "0,1"], "--levels 0,1: every number must be positive"),
        (["--sigma_s", "0.1,2", "--potential", "shoulder", "--levels", "1", "--paths", "2"], "sigma_s=2.0"),
        (["--paths", "1"], "num_paths=1"),
        (["--max_time", "-1"], "--max_time -1.0"),
    ],
)
def test_errors_are_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["escape", *options, "--output", str(tmp_path)])
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
