"""What the documentation claims of the experiments, on fewer seeds."""

import copy
from pathlib import Path

import pytest
import torch

from lightning_lift.rescaling import rescale_

pytest.importorskip("mlxtend")
BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")


@pytest.mark.slow
def test_path_conditioning_leaves_the_plateau_of_a_small_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rescaling_mnist as benchmark  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    x, y = benchmark.load()
    group, change = benchmark.train_group(x, y, 2, benchmark.WIDTHS["even"], 0.1, 0.1, 15, 32)
    assert change < 1e-5
    reached = {arm: [benchmark.epochs_to_target(model[1]) for model in group[arm]] for arm in benchmark.ARMS}
    assert max(reached["pathcond"]) <= 15
    assert min(reached["none"]) == float("inf")
    assert min(reached["enorm"]) == float("inf")


@pytest.mark.slow
def test_path_conditioning_helps_the_autoencoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported: 0.88 +- 0.01 of the loss after 5 epochs of Adam; all of 5 seeds."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rescaling_autoencoder as benchmark  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    pixels = torch.tensor(benchmark.mnist_data()[0], dtype=torch.float32).view(-1, 1, 28, 28) / 255.0
    pixels = pixels[torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))]  # stored class by class
    torch.manual_seed(0)
    start = benchmark.ConvAutoencoder(code_dim=16)
    rescaled = copy.deepcopy(start)
    rescale_(rescaled, example_input=pixels[:8])
    losses = [benchmark.train(m, "adam 1e-3", pixels[:4000], pixels[4000:], 5, 0)[-1] for m in (start, rescaled)]
    assert losses[1] < 0.95 * losses[0]
