import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from lightning_lift.compare.records import RunRecord
from lightning_lift.compare.report import curves_frame, runs_frame, write_report
from lightning_lift.compare.report.figures import Picture
from tests.lightning_lift.compare.report.synthetic import (
    broken,
    synthetic_record,
    synthetic_records,
    synthetic_settings,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What a page fetches, its tags in balance, its images and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.scripts = 0
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.scripts += tag == "script"
        self.fetched += [str(own[name]) for name in ("src", "href", "srcset", "data") if own.get(name)]
        if tag == "img":
            self.images.append(own)
        if tag not in ("img", "meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    write_report(directory, synthetic_settings(30), synthetic_records(30))
    return directory


@pytest.mark.usefixtures("undrawn")
def test_every_file_is_written_and_named(tmp_path: Path) -> None:
    records = synthetic_records(3)
    paths = write_report(tmp_path, synthetic_settings(3), records)
    assert len(set(paths)) == len(paths) and all(path.stat().st_size > 0 for path in paths)
    assert {path.name for path in paths} >= {"report.html", "report.md", "runs.csv", "runs.parquet", "curves.parquet"}
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(paths)


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        records = synthetic_records(3, ("lift", "pgd"), tuning=False)
        for record in records:
            record.curves = {name: record.curves[name] for name in ("step", "latent/step")}
        write_report(tmp_path / name, {"metrics": ["test/nll"]}, records)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path.name


def test_the_page_stands_alone(whole: Path) -> None:
    text = (whole / "report.html").read_text()
    page = Page(text)
    assert not page.open and page.scripts == 0
    assert all(target.startswith(("data:", "#")) for target in page.fetched)
    assert "@import" not in text and "url(" not in text
    assert len(page.images) >= 9 and all(len(image["alt"] or "") > 20 for image in page.images)
    assert '<meta name="viewport"' in text and "prefers-color-scheme: dark" in text and "@media print" in text
    links = {target[1:] for target in page.fetched if target.startswith("#")}
    assert links == set(re.findall(r'<section id="([^"]+)"', text))


def test_the_page_says_what_the_tests_say_and_no_more(whole: Path) -> None:
    text = Page((whole / "report.html").read_text()).text
    assert re.search(
        r"Over 29 paired seeds \(1 more did not finish\), pgd's test total variation was lower than direct's by", text
    )
    assert (
        "no difference in test total variation between direct:latent_gain=10 and lift was found at the 5 % level"
        in text
    )
    assert "Validation total variation after equal training time, 18.0 s" in text
    assert "direct 1 of 30, lift 1 of 30" in text and "36 tuning runs on 3 seeds" in text
    assert "the chosen rate 0.003 is at the edge of the grid" in text
    assert "OutOfMemoryError: could not allocate <1 GiB> & more" in text
    assert "same network start in each of 30 seeds" in text and "torch 2.13.0" in text


def test_markdown_has_the_same_tables_and_its_figures(whole: Path) -> None:
    text = (whole / "report.md").read_text()
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text.replace("\\]", ""))
    assert len(shown) >= 9 and all((whole / path).is_file() for path in shown)
    assert {"figures/curve-shoulder-occupancy-steps.png", "figures/curve-zeros-fraction-steps.png"} <= set(shown)
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")
    assert "OutOfMemoryError: could not allocate \\<1 GiB\\> & more" in text
    assert Page((whole / "report.html").read_text()).text.count("Holm p =") == text.count("Holm p =")


@pytest.mark.usefixtures("undrawn")
def test_a_broken_pairing_is_said_loudly(tmp_path: Path) -> None:
    records = synthetic_records(3)
    next(record for record in records if record.arm == "lift").start_hash = "other"
    write_report(tmp_path, synthetic_settings(4, notes=["lift was not vectorized: <reason>"]), records)
    text = (tmp_path / "report.html").read_text()
    assert "lift was not vectorized: &lt;reason&gt;" in text
    assert '<p class="warning" role="note">Warning: lift differs' in text
    assert "Warning: This comparison is not complete" in text
    assert "> **Warning:** lift differs" in (tmp_path / "report.md").read_text()


def test_every_run_is_a_row(whole: Path) -> None:
    records = synthetic_records(30)
    for frame in (pd.read_csv(whole / "runs.csv"), pd.read_parquet(whole / "runs.parquet")):
        assert len(frame) == len(records) == 120 + 36 + 4
        row = frame[(frame.arm == "lift") & (frame.seed == 5) & (frame.purpose == "final")].iloc[0]
        expected = synthetic_record("lift", 5)
        assert row["best/test/nll"] == expected.metrics["best"]["test/nll"]
        assert row["start_hash"] == "start5" and row["num_parameters"] == 3_281_000
        assert row["seconds_per_step"] == 0.021 and row["version/torch"] == "2.13.0"
        failed = frame[frame.outcome == "failed"].iloc[0]
        assert failed["error"].startswith("OutOfMemoryError") and math.isnan(failed["best/test/nll"])


def test_every_look_is_a_row(whole: Path) -> None:
    frame = pd.read_parquet(whole / "curves.parquet")
    own = frame[(frame.arm == "pgd") & (frame.seed == 2) & (frame.purpose == "final")]
    expected = synthetic_record("pgd", 2).curves
    assert own["step"].tolist() == expected["step"] and own["val/nll"].tolist() == expected["val/nll"]
    assert own["shoulder/occupancy"].isna().all()


def test_curves_of_different_lengths_are_refused() -> None:
    record = synthetic_record("pgd", 0)
    record.curves["val/nll"].pop()
    with pytest.raises(ValueError, match=r"curves of final-pgd.* not equally long"):
        curves_frame([record])


def no_rates() -> list[RunRecord]:
    records = synthetic_records(2, tuning=False, timing=False)
    for record in records:
        record.learning_rate = None
    return records


def all_failed() -> list[RunRecord]:
    return [broken(record, "failed", "RuntimeError: no") for record in synthetic_records(3, unfinished=False)]


def no_clock() -> list[RunRecord]:
    records = synthetic_records(3, timing=False)
    for record in records:
        del record.curves["seconds"]
    return records


def gaps() -> list[RunRecord]:
    records = synthetic_records(8, timing=False)
    for record in records[::3]:
        record.metrics.get("best", {}).pop("test/total_variation", None)
        record.metrics.pop("last", None)
        record.curves.pop("val/total_variation", None)
        record.curves.pop("seconds", None)
    return records


def other_task() -> list[RunRecord]:
    records = synthetic_records(3)
    for record in records:
        record.metrics = {"best": {"test/accuracy": 0.9 + 0.01 * record.seed, "val/loss": 0.2}, "last": {}}
        record.curves = {"step": [10.0, 20.0], "seconds": [1.0, 2.0], "val/loss": [0.5, 0.4]}
    return records


def seconds_budget() -> list[RunRecord]:
    records = synthetic_records(3)
    for record in records:
        record.steps = 1000 if record.arm == "lift" else record.steps
    return records


CASES = {
    "nothing": ([], "no final runs yet"),
    "one seed": (synthetic_records(1), "More seeds are needed"),
    "one arm": (synthetic_records(4, ("lift",)), "nothing to compare it with"),
    "no rates": (no_rates(), "No learning rate was tuned"),
    "all failed": (all_failed(), "No final run has a test metric"),
    "no clock": (no_clock(), "training time of an arm was not measured"),
    "gaps": (gaps(), "s of training"),
    "another task": (other_task(), "test accuracy"),
    "different steps": (seconds_budget(), "no comparison at equal steps"),
    "only tuning": ([record for record in synthetic_records(1) if record.purpose == "tune"], "no final runs yet"),
}


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not rendered, which is what a report takes its time for; test_figures renders them."""
    monkeypatch.setattr(Picture, "png", b"png")
    monkeypatch.setattr(Picture, "svg", "<svg/>")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", CASES)
def test_edges(name: str, tmp_path: Path) -> None:
    records, said = CASES[name]
    for settings in ({}, synthetic_settings(2)) if name in ("one seed", "only tuning") else (synthetic_settings(2),):
        write_report(tmp_path, settings, records)
        page = Page((tmp_path / "report.html").read_text())
        assert not page.open and said in page.text
        assert "nan" not in re.sub(r"[a-z]*nan[a-z]+|[a-z]+nan", "", page.text.lower())
        assert (
            len(pd.read_csv(tmp_path / "runs.csv")) == len(pd.read_parquet(tmp_path / "runs.parquet")) == len(records)
        )


@pytest.mark.usefixtures("undrawn")
def test_equal_seconds_are_the_headline_of_a_budget_in_seconds(tmp_path: Path) -> None:
    write_report(tmp_path, synthetic_settings(3, budget="seconds"), seconds_budget())
    text = Page((tmp_path / "report.html").read_text()).text
    assert (
        "At equal seconds of training, as measured in the timing runs: runs had 1,000 to 3,000 optimizer steps" in text
    )
    assert "Validation after 1,000 steps" in text and "Paired differences at equal steps" in text


@pytest.mark.usefixtures("undrawn")
def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>|`*[x](y)\"'"
    records = synthetic_records(3, ("pgd", "lift"))
    for record in records:
        record.arm = evil if record.arm == "pgd" else record.arm
        record.versions = {"<b>": '"><img src=x>'}
    write_report(tmp_path, {"name": evil, "arms": [evil, "lift"]}, records)
    page = Page((tmp_path / "report.html").read_text())
    assert page.scripts == 0 and not page.open and evil in page.text
    assert all(target.startswith(("data:", "#")) for target in page.fetched)
    assert "<script" not in (tmp_path / "report.md").read_text().replace("\\<", "")


@pytest.mark.usefixtures("undrawn")
def test_figures_of_an_earlier_report_are_taken_away(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "old.png").write_bytes(b"old")
    (tmp_path / "figures" / "notes.txt").write_text("mine")
    write_report(tmp_path, {}, synthetic_records(2, ("pgd", "lift")))
    assert not (tmp_path / "figures" / "old.png").exists() and (tmp_path / "figures" / "notes.txt").exists()


def test_frames_without_runs_have_their_columns() -> None:
    assert "outcome" in runs_frame([]) and "step" in curves_frame([])


@pytest.mark.slow
def test_thousands_of_records(tmp_path: Path) -> None:
    write_report(tmp_path, synthetic_settings(1000), synthetic_records(1000))
    assert (tmp_path / "report.html").stat().st_size < 5_000_000


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_it_without_a_word_in_its_console(whole: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    shell = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--enable-logging=stderr",
    ]
    # The page itself has no script: one is put into a copy, after it, to ask the browser what it sees.
    probe = (
        "<script>onload=()=>{const d=document,i=[...d.images];"
        "const wide=[...d.querySelectorAll('main *')].filter(e=>!e.closest('.scroll,pre')&&"
        "e.getBoundingClientRect().right>innerWidth+1).length;"
        "d.body.innerHTML=`<p id=seen>${i.length} ${i.filter(x=>x.complete&&x.naturalWidth>0).length} "
        "${d.documentElement.scrollWidth<=innerWidth} ${wide}</p>`}</script>"
    )
    copy = tmp_path / "probe.html"
    copy.write_text((whole / "report.html").read_text().replace("</body>", probe + "</body>"))
    for width in (390, 1280):
        done = subprocess.run(
            [*shell, f"--window-size={width},2000", "--dump-dom", copy.as_uri()],
            capture_output=True,
            text=True,
            timeout=90,
        )
        found = re.search(r'<p id="seen">(\d+) (\d+) (\w+) (\d+)</p>', done.stdout)
        assert found is not None, done.stderr[-2000:]
        images, shown, narrow, wide = found.groups()
        assert images == shown and int(images) >= 9
        assert (narrow, wide) == ("true", "0")  # nothing but the tables' own boxes scrolls sideways
        assert "CONSOLE" not in done.stderr


def test_clocks_that_disagree_are_said_loudly(tmp_path: Path) -> None:
    records = synthetic_records(3, labels=("pgd", "direct"), tuning=False, unfinished=False)
    for record in records:
        record.engine, record.timings["seconds_per_step"] = "lightning", 0.01
    write_report(tmp_path / "quiet", {}, records)
    assert "disagree on the arms" not in (tmp_path / "quiet" / "report.md").read_text()
    for record in records:
        if record.purpose == "timing" and record.arm == "pgd":
            record.timings["seconds_per_step"] = 0.02
    write_report(tmp_path / "loud", {}, records)
    assert "direct 1.00, pgd 2.00" in (tmp_path / "loud" / "report.md").read_text()
