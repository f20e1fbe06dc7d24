"""The scripts of the gallery end in a picture."""

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_picture_is_drawn(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("cvxpy")
    found = importlib.util.spec_from_file_location(script.stem, script)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.main(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
