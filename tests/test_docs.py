"""The code in the documentation runs as it stands, and passes the contracts that it is said to pass."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_lift.testing as contracts
from lightning_lift.datamodules import TabularDataModule
from lightning_lift.shipped import configurations

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def shortened(source: str, settings: str, quick: str) -> str:
    assert settings in source  # else it would train for as long as the page says
    return source.replace(settings, quick)


@pytest.mark.parametrize(
    ("page", "case", "module"),
    [
        ("docs/adding_a_parameterization.md", "TestSquared", "documented_squared"),
        ("docs/adding_a_task.md", "TestConvexFit", "documented_fit"),
        ("docs/adding_a_network.md", "TestMaxOfPlanes", "documented_planes"),
    ],
)
def test_documented_extension_passes_its_contract(
    page: str, case: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a module of its own, as a user has it: checkpoints store classes by their path.
    (tmp_path / f"{module}.py").write_text(blocks(page)[0])
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {**vars(contracts), **vars(__import__(module)), "TabularDataModule": TabularDataModule}
    exec(blocks(page)[1], names)
    for method in [name for name in dir(names[case]) if name.startswith("test_")]:
        getattr(names[case](), method)()


def test_readme_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = shortened(blocks("README.md")[0], "max_steps=3000", "max_steps=5, enable_progress_bar=False")
    names: dict[str, Any] = {"x": torch.zeros(3, 1), "z": torch.zeros(3, 1)}
    exec(source, names)
    assert names["density"].log_prob(torch.zeros(3, 1)).shape == (3,)


def test_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cvxpy")
    monkeypatch.chdir(tmp_path)
    source = shortened(
        "\n".join(blocks("docs/programs.md")), "max_epochs=20", "max_epochs=2, enable_progress_bar=False"
    )
    names: dict[str, Any] = {}
    exec(source, names)
    assert names["best"].gap < 1e-6 and names["best"].residual < 1e-6
    assert names["problem"].status == "optimal" and names["result"].status == 0


def test_every_configuration_and_page_that_the_readme_names_exists() -> None:
    readme = (ROOT / "README.md").read_text()
    for path in re.findall(r"(?:configs|docs)/[\w/]+\.(?:yaml|md)", readme):
        assert (ROOT / path).is_file(), path
    named = re.findall(r"--config ([\w/]+\.yaml)", readme)
    assert named and set(named) <= set(configurations())


def test_a_simulator_of_ones_own() -> None:
    names: dict[str, Any] = {}
    exec(blocks("docs/data_sets.md")[0], names)
    batch, data = names["batch"], names["data"]
    assert batch.x.shape == (256, 2) and batch.context.shape == (256, 8)
    assert data.inside(data.units.invert(batch.x.double())).all()


def test_the_page_on_posteriors_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit, judge, with_sbi = blocks("docs/posteriors.md")
    fit = shortened(fit, "num_simulations=10_000", "num_simulations=600, num_test=100")
    fit = shortened(fit, "max_epochs=20", "max_steps=5, enable_progress_bar=False, logger=False")
    names: dict[str, Any] = {}
    exec(shortened(fit, "flow.sample(1000,", "flow.sample(100,"), names)
    exec(
        shortened(shortened(judge, "flow.sample(200,", "flow.sample(20,"), ".sample((1000,))", ".sample((100,))"), names
    )
    assert names["ranks"].ranks.shape == (100, 2) and (tmp_path / "calibration.png").is_file()
    if find_spec("sbi") is not None:
        exec(shortened(with_sbi, "learning_rate=1e-2", "learning_rate=1e-2, max_num_epochs=1"), names)
        assert names["ranks"].shape == (200, 2)


def test_a_users_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = blocks("docs/transport.md")
    names: dict[str, Any] = {}
    exec(shortened(source, "max_steps=1000", "max_steps=5, enable_progress_bar=False, logger=False"), names)
    assert names["mapped"].shape == (5000, 2) and names["back"].shape == (4000, 2)
    torch.testing.assert_close(names["frozen"](names["x"]), names["mapped"])


def test_a_users_regression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    estimator, module = blocks("docs/regression.md")
    names: dict[str, Any] = {}
    exec(estimator.replace("random_state=0", "random_state=0, max_steps=5"), names)
    assert names["prices"].shape == (2400, 3)
    exec(module.replace("max_steps=2000, val_check_interval=50", "max_steps=5, val_check_interval=5"), names)
    x = torch.from_numpy(names["x"][:5])
    assert names["frozen"](x).shape == (5,) and names["function"].gradient(x).shape == (5, 3)
