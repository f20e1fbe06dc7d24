"""The package as it is installed: its files, its names, and a folder of a user's that has a name of ours."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
DECOY = "from lightning_lift.datamodules import GumbelDataModule\n\nclass MineDataModule(GumbelDataModule):\n    pass\n"
BUILT = """
import json, sys
from setuptools.dist import Distribution
distribution = Distribution({"src_root": ".", "script_name": "setup.py"})
distribution.parse_config_files()
build = distribution.get_command_obj("build_py")
build.ensure_finalized()
print(json.dumps([build.build_lib, build.get_outputs(include_bytecode=False)]))
"""


def package_files() -> set[str]:
    """Files of the package in the repository, by what they are imported as: two of its folders are links."""
    folders = os.walk(ROOT / "lightning_lift", followlinks=True)
    files = {Path(folder) / name for folder, _, names in folders for name in names}
    return {str(path.relative_to(ROOT)) for path in files if path.parent.name != "__pycache__"}


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    command = [sys.executable, "-c", BUILT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    library, outputs = json.loads(done.stdout.splitlines()[-1])
    built = {str(Path(path).relative_to(library)) for path in outputs}
    assert built == package_files()
    for path in ("datamodules/gumbel.py", "configs/ebm_gumbel.yaml", "configs/parameterization/pgd.yaml", "py.typed"):
        assert f"lightning_lift/{path}" in built


def test_no_top_level_name_but_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["packages"]["find"]["include"] == ["lightning_lift*"]
    for link in ("datamodules", "configs"):
        assert (ROOT / "lightning_lift" / link).is_symlink() and not (ROOT / link).is_symlink()


@pytest.fixture
def decoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "datamodules"
    folder.mkdir()
    (folder / "__init__.py").write_text(DECOY)
    return tmp_path


PRINTED = """
import sys
import lightning_lift.datamodules
from lightning_lift.cli import main
if "" in sys.path:
    sys.path.remove("")  # the console script has no working directory on its path
def printed(data):
    try:
        main(["fit", "--config", "ebm_gumbel.yaml", "--data", data, "--print_config"])
    except SystemExit as end:
        assert end.code == 0, data
printed("GumbelDataModule")
assert sys.path[-1] == sys.argv[1] and sys.path.index(sys.argv[1]) == len(sys.path) - 1
printed("datamodules.GumbelDataModule")
printed("datamodules.gumbel.GumbelDataModule")
assert "datamodules" not in sys.modules
printed("datamodules.MineDataModule")
import datamodules, os
assert os.path.dirname(os.path.dirname(datamodules.__file__)) == sys.argv[1]
files = [os.path.realpath(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
folder = os.path.dirname(os.path.realpath(lightning_lift.datamodules.__file__))
ours = [file for file in files if file.startswith(folder)]
assert len(ours) == len(set(ours)) > 10, ours
"""


def test_a_users_folder_of_the_same_name_changes_nothing(decoy: Path) -> None:
    """The console script: a user's ``datamodules`` is found under its own names, ours never a second time."""
    command = [sys.executable, "-c", PRINTED, str(decoy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    paths = [line.split()[-1] for line in done.stdout.splitlines() if "DataModule" in line]
    assert paths == 3 * ["lightning_lift.datamodules.GumbelDataModule"] + ["datamodules.MineDataModule"]


def test_a_users_folder_of_the_same_name_under_python_m(decoy: Path) -> None:
    command = [sys.executable, "-m", "lightning_lift", "fit", "--config", "ebm_gumbel.yaml", "--print_config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "class_path: lightning_lift.datamodules.GumbelDataModule" in done.stdout


@pytest.mark.slow
def test_the_wheel_alone_fits_tests_and_compares(tmp_path: Path) -> None:
    """In a fresh environment without the repository: the demo configuration by its bare name."""
    source, wheels, environment, work = (tmp_path / name for name in ("source", "wheels", "environment", "work"))
    kept = shutil.ignore_patterns(".git", ".venv", "runs", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, source, symlinks=True, ignore=kept)
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run(build, check=True, timeout=600)
    shutil.rmtree(source)
    venv.create(environment, with_pip=False)
    site = next(environment.glob("lib/*/site-packages"))
    (site / "dependencies.pth").write_text(str(Path(torch.__file__).parent.parent))  # no path file in there is read
    wheel = next(wheels.glob("lightning_lift-*.whl"))
    python = environment / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)], check=True, timeout=600
    )
    assert not (site / "datamodules").exists() and not (site / "configs").exists()
    work.mkdir()
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

    def run(*arguments: str, program: str = "lightning-lift") -> str:
        done = subprocess.run(
            [str(environment / "bin" / program), *arguments],
            cwd=work,
            env=variables,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    code = "import lightning_lift.datamodules as d; print(d.__file__)"
    assert run("-c", code, program="python").startswith(str(site))
    assert "ebm_gumbel.yaml" in run("configs")
    config = ["--config", "ebm_gumbel.yaml"]
    run("fit", *config, "--test_after_fit")
    checkpoint = next((work / "runs").rglob("last.ckpt"))
    assert "test/nll" in run("test", *config, "--ckpt_path", str(checkpoint))
    run("compare", *config, "--seeds", "2", "--steps", "50", "--parameterizations", "pgd,lift", "--output", "compared")
    assert (work / "compared" / "report.md").is_file()
