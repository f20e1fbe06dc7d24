"""Simulations: served in training units, seeded, kept on disk, from functions and from the command line."""

import lightning as L
import pytest
import torch
from torch import Tensor, nn

from lightning_lift.cli import LiftCLI
from lightning_lift.datamodules import LinearGaussianDataModule, SimulatorDataModule, SLCPDataModule
from lightning_lift.datamodules.batches import Batch
from lightning_lift.datamodules.parts import units_of_context

CALLS: list[int] = []


def prior(num_rows: int, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.rand(num_rows, 3, generator=generator) + 5.0


def images(x: Tensor, generator: torch.Generator) -> Tensor:
    CALLS.append(len(x))
    return x.sum(1)[:, None, None, None] + torch.randn(len(x), 1, 2, 4, generator=generator)


def small(**settings: object) -> SimulatorDataModule:
    sizes = {"num_simulations": 200, "num_test": 30, "batch_size": 64}
    return SimulatorDataModule(prior, images, [[5.0] * 3, [7.0] * 3], **(sizes | settings))


def test_parts_are_served_in_training_units_and_bounds_follow_them():
    data = small()
    train = data.split("train")
    assert (data.dim, data.context_shape) == (3, (1, 2, 4))
    assert [len(data.split(key).x) for key in ("train", "val", "test")] == [180, 20, 30]
    torch.testing.assert_close(train.x.mean(0), torch.zeros(3), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(train.context.std(unbiased=False), torch.tensor(1.0))
    original = data.units.invert(train.x.double())
    assert data.inside(original).all() and not data.inside(original + 2.0).any()
    assert (train.x >= data.support[0] - 1e-5).all() and (train.x <= data.support[1] + 1e-5).all()
    torch.testing.assert_close(data.units.invert(data.support), data.bounds, atol=1e-5, rtol=0.0)
    # each row of context is the data of its row of parameters
    residual = data.field_units["context"].invert(train.context.double()).mean((1, 2, 3)) - original.sum(1)
    assert float(residual.std()) == pytest.approx(8**-0.5, rel=0.2)
    batch = next(iter(data.train_dataloader()))
    assert isinstance(batch, Batch) and batch.context.shape == (64, 1, 2, 4) and batch.x.dtype == torch.float32


def test_data_that_are_a_vector_are_whitened():
    """Two sensors that differ by their noise of 1e-3 only: what tells parameters apart is of unit size.

    With as few rows as columns all noise would be made to look uncorrelated.
    """
    assert units_of_context(torch.randn(39, 4, generator=torch.Generator().manual_seed(0))).scale.shape == (4,)
    data = SimulatorDataModule(
        prior,
        lambda x, g: x.sum(1, keepdim=True) + 1e-3 * torch.randn(len(x), 2, generator=g),
        num_simulations=2000,
    )
    context = data.split("train").context
    torch.testing.assert_close(torch.cov(context.T), torch.eye(2), atol=2e-3, rtol=0.0)
    original = data.field_units["context"].invert(context[:1].double())
    assert float((original[0, 0] - original[0, 1]).abs()) < 0.01


def test_simulations_are_a_function_of_the_seed_alone():
    state = torch.get_rng_state()
    one, two, other = small().split("train"), small().split("train"), small(data_seed=1).split("train")
    assert torch.equal(one.x, two.x) and torch.equal(one.context, two.context)
    assert not torch.equal(one.x, other.x)
    assert torch.equal(state, torch.get_rng_state())


def test_simulations_are_kept_on_disk_until_simulator_seed_or_numbers_change(tmp_path):
    first = small(cache_folder=str(tmp_path)).split("test")
    CALLS.clear()
    again = small(cache_folder=str(tmp_path)).split("test")
    assert max(CALLS) < 20 and torch.equal(first.context, again.context)  # the few at construction
    for changed in (small(cache_folder=str(tmp_path), data_seed=1), small(cache_folder=str(tmp_path), num_test=31)):
        CALLS.clear()
        changed.setup()
        assert max(CALLS) == 180
    louder = SimulatorDataModule(
        prior,
        lambda x, g: 2.0 * images(x, g),
        num_simulations=200,
        num_test=30,
        batch_size=64,
        cache_folder=str(tmp_path),
    )
    CALLS.clear()
    louder.setup()
    assert max(CALLS) == 180


def test_what_does_not_fit_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"the prior must give 4 rows.*got shape \(4,\)"):
        SimulatorDataModule(lambda n, g: torch.zeros(n), images)
    with pytest.raises(ValueError, match=r"the simulator must give the data of each row.*got shape \(4,\)"):
        SimulatorDataModule(prior, lambda x, g: x.sum(1))
    with pytest.raises(ValueError, match=r"bounds must be \(2, 3\)"):
        SimulatorDataModule(prior, images, [[0.0, 1.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match="leave 45 for training, fewer than batch_size 64"):
        small(num_simulations=50)
    broken = SimulatorDataModule(
        prior, lambda x, g: torch.where(x > 6.9, torch.nan, x), num_simulations=400, batch_size=64
    )
    with pytest.raises(ValueError, match=r"train-context of .* simulations is not finite"):
        broken.setup()


def test_hyperparameters_make_an_equal_module_and_name_no_function():
    data = SLCPDataModule(num_simulations=300, data_seed=3)
    again = SLCPDataModule(**data.hparams)
    assert torch.equal(data.split("val").context, again.split("val").context)
    assert set(small().hparams) & {"prior", "simulator"} == set()


class Nothing(L.LightningModule):
    """A module of the command line that looks at one batch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, 1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        assert batch.context.shape[1:] == (1, 2, 4)
        return self.layer(batch.x).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def test_prior_and_simulator_are_import_paths_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--trainer.max_steps=1", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    flags += ["--trainer.limit_val_batches=0", "--trainer.accelerator=cpu", f"--model={__name__}.Nothing"]
    paths = [f"--data.prior={__name__}.prior", f"--data.simulator={__name__}.images", "--data.num_simulations=300"]
    cli = LiftCLI(["fit", *flags, "--data=SimulatorDataModule", *paths])
    assert cli.trainer.global_step == 1 and cli.model.layer.in_features == 3
    checkpoint = tmp_path / "model.ckpt"
    cli.trainer.save_checkpoint(checkpoint)
    with pytest.raises(ValueError, match="prior"):
        SimulatorDataModule.load_from_checkpoint(checkpoint)
    loaded = SimulatorDataModule.load_from_checkpoint(checkpoint, prior=prior, simulator=images)
    assert torch.equal(loaded.split("test").x, cli.datamodule.split("test").x)


def test_tasks_without_a_closed_form_say_so():
    data = small()
    assert data.reference_draws(torch.zeros(1, 2, 4), 3, 0) is None
    for ask in (data.log_likelihood, data.log_posterior):
        with pytest.raises(NotImplementedError, match="is not known"):
            ask(torch.zeros(1, 3), torch.zeros(1, 1, 2, 4))
    assert LinearGaussianDataModule().reference_draws(torch.zeros(10), 3, 0).shape == (3, 10)
