"""The face: what ``lightning_lift`` itself offers, and what asking for it imports."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_lift


def shown_to_type_checkers() -> set[str]:
    tree = ast.parse(Path(str(lightning_lift.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_every_name_that_type_checkers_see_is_there() -> None:
    names = shown_to_type_checkers()
    assert {name for name in names if name[0].isupper()} == set(lightning_lift.__all__)
    for name in names:
        found = getattr(lightning_lift, name)
        assert name in dir(lightning_lift)
        if name[0].isupper():
            assert found is getattr(importlib.import_module(found.__module__), name)
        else:
            assert found is sys.modules[f"lightning_lift.{name}"]


def test_the_light_part_does_not_import_lightning() -> None:
    code = (
        "import sys; from lightning_lift import ICNN, Lift, DirectSoftplus, Potential; import lightning_lift;"
        "heavy = {m.partition('.')[0] for m in sys.modules} &"
        "{'lightning', 'scipy', 'pandas', 'sklearn', 'matplotlib'};"
        "assert not heavy, heavy; print(lightning_lift.networks.ICNN is ICNN, dir(lightning_lift))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True") and "'LogConcaveEBM'" in done.stdout and "'callbacks'" in done.stdout


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Liftt'"):
        lightning_lift.Liftt  # noqa: B018
    with pytest.raises(ImportError, match="Liftt"):
        from lightning_lift import Liftt  # noqa: F401
