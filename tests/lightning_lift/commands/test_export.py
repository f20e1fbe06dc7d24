"""``lightning-lift export``: files that give what the checkpoint gives."""

import functools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from lightning_lift.cli import main
from lightning_lift.datamodules.units import Units
from lightning_lift.modules import ConvexPotentialFlow, ConvexRegression, LogConcaveEBM
from lightning_lift.modules.checkpoints import load_module
from lightning_lift.networks import ICNN, PICNN
from lightning_lift.parameterizations import Lift
from lightning_lift.partition import Quadrature

ROWS = torch.randn(7, 2, generator=torch.Generator().manual_seed(5)) * torch.tensor([2.0, 0.5]) + 3.0
CONTEXTS = torch.randn(7, 2, generator=torch.Generator().manual_seed(6))


def written(module: L.LightningModule, folder: Path) -> Path:
    """A checkpoint of this module as it stands."""
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=folder)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(folder / "x.ckpt")
    return folder / "x.ckpt"


def density(folder: Path, scale: torch.Tensor, **options: Any) -> Path:
    torch.manual_seed(0)
    quick = functools.partial(Quadrature, num_points=65, evaluation_points=65)
    module = LogConcaveEBM(len(scale), functools.partial(ICNN, widths=[6, 6], **options), partition=quick)
    module.location, module.scale = torch.full((len(scale),), 3.0).double(), scale.double()
    return written(module, folder)


def regression(folder: Path, **options: Any) -> Path:
    torch.manual_seed(0)
    sizes = {"widths": [6, 6], "activation": "relu", "strong_convexity": 0.0}
    network: Any = functools.partial(PICNN if "context_shape" in options else ICNN, **sizes)
    module = ConvexRegression(2, network=network, concave=True, **options)
    module.location, module.scale = torch.tensor([3.0, 3.0]).double(), torch.tensor([2.0, 0.5]).double()
    module.field_units["target"] = Units(*torch.tensor([[50.0], [7.0]]).double())
    return written(module, folder)


def by_onnxruntime(path: Path, **inputs: torch.Tensor) -> torch.Tensor:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    return torch.from_numpy(session.run(None, {name: part.numpy() for name, part in inputs.items()})[0])


def test_a_density_far_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    source = density(tmp_path, torch.tensor([2.0]))
    far = torch.tensor([[-300.0], [0.0], [3.0], [500.0]])  # where a sigmoid is 0 in float32
    module = load_module(source)
    assert isinstance(module, LogConcaveEBM)
    expected = module.log_prob(far).detach()
    for form, ending in (("onnx", "onnx"), ("torch", "pt2")):
        main(["export", str(source), "--format", form])
        assert "takes float32 (N, 1), gives (N,); on 64 random rows it differs" in capsys.readouterr().out
        path = tmp_path / f"x.{ending}"
        given = by_onnxruntime(path, x=far) if form == "onnx" else torch.export.load(path).module()(far)
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


def test_a_density_of_whitened_rows(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    source = density(tmp_path, torch.tensor([[2.0, 0.3], [0.3, 0.5]]), activation="gaussian_softplus")
    main(["export", str(source), "--format", "onnx"])
    module = load_module(source)
    assert isinstance(module, LogConcaveEBM)
    expected = module.log_prob(ROWS).detach()
    torch.testing.assert_close(by_onnxruntime(tmp_path / "x.onnx", x=ROWS), expected, rtol=1e-4, atol=1e-4)


def test_a_regression_with_context_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    highspy = pytest.importorskip("highspy")
    source = regression(tmp_path, context_shape=(2,))
    module = load_module(source)
    assert isinstance(module, ConvexRegression)
    expected = module.freeze()(ROWS, CONTEXTS).detach()
    main(["export", str(source), "--format", "onnx"])
    torch.testing.assert_close(
        by_onnxruntime(tmp_path / "x.onnx", x=ROWS, context=CONTEXTS), expected, rtol=1e-5, atol=0
    )
    main(["export", str(source), "--format", "lp", "--context", "0.5,-1.5", "--output", str(tmp_path / "y.mps")])
    assert "minimises minus the concave function of x1, ..., x2" in capsys.readouterr().out
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(tmp_path / "y.mps"))
    for index, value in enumerate(ROWS[0].double().tolist()):
        solver.changeColBounds(solver.getColByName(f"x{index + 1}")[1], value, value)
    solver.run()
    at_context = module.freeze()(ROWS[:1], torch.tensor([[0.5, -1.5]]))
    assert -solver.getInfo().objective_function_value == pytest.approx(float(at_context), rel=1e-5)


def test_what_cannot_be_exported_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(source: Path, *arguments: str) -> str:
        with pytest.raises(SystemExit):
            main(["export", str(source), *arguments])
        return capsys.readouterr().err

    flow = written(ConvexPotentialFlow(2, functools.partial(ICNN, widths=[6, 6])), tmp_path)
    assert "ONNX has no operators for this model" in error(flow, "--format", "onnx")
    assert "neither convex nor concave" in error(flow, "--format", "lp")
    assert not (tmp_path / "x.onnx").exists() and not (tmp_path / "x.lp").exists()
    assert "the format torch is written as .pt2" in error(flow, "--format", "torch", "--output", "x.onnx")
    assert "belong to --format lp" in error(flow, "--format", "torch", "--context", "1")
    assert "does not exist" in error(flow, "--format", "torch", "--output", str(tmp_path / "no" / "x.pt2"))
    quadratic = density(tmp_path, torch.ones(1), activation="relu")
    assert "this is a quadratic program" in error(quadratic, "--format", "lp")
    smooth = density(tmp_path, torch.ones(1), strong_convexity=0.0)
    assert "state max_error" in error(smooth, "--format", "lp")
    assert "takes no context" in error(smooth, "--format", "lp", "--context", "1")
    lift = written(LogConcaveEBM(1, functools.partial(ICNN, widths=[6, 6]), Lift), tmp_path)
    assert "reference summary" in error(lift, "--format", "torch")
    conditional = regression(tmp_path, context_shape=(2,))
    assert "give --context" in error(conditional, "--format", "lp")
    assert "--context has 1 numbers, and the network takes 2" in error(conditional, "--format", "lp", "--context", "1")
    assert "give numbers with commas" in error(conditional, "--format", "lp", "--context", "a")
