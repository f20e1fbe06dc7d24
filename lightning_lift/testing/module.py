"""What every task module must hold."""

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any, ClassVar, cast

import lightning as L
import torch
from torch import Tensor

from lightning_lift.datamodules.batches import context_of, num_rows
from lightning_lift.diagnostics.probe import undisturbed
from lightning_lift.modules import ConvexModule, DensityTask, FrozenDistribution, TaskModule
from lightning_lift.modules.frozen import FrozenEnergy


class ModuleContract:
    """Derive, and define ``make()`` and ``make_data()``.

    Attributes:
        steps: optimizer steps of the short fits.
    """

    steps: int = 5
    _kept: ClassVar[tuple[TaskModule, Any]]

    def make(self) -> TaskModule:
        """A fresh module that fits the data."""
        raise NotImplementedError

    def make_data(self) -> Any:
        """A data module of small splits."""
        raise NotImplementedError

    def _trainer(self, **kwargs: Any) -> L.Trainer:
        settings: dict[str, Any] = {
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "max_steps": self.steps,
        }
        return L.Trainer(**(settings | kwargs))

    def _fitted(self, **kwargs: Any) -> tuple[TaskModule, Any, L.Trainer]:
        L.seed_everything(0, verbose=False)
        module, data = self.make(), self.make_data()
        trainer = self._trainer(**kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, datamodule=data)
        return module, data, trainer

    def _fitted_once(self) -> tuple[TaskModule, Any]:
        """A fitted module and its data, which the tests of a class share: they only read it."""
        if "_kept" not in type(self).__dict__:
            type(self)._kept = self._fitted()[:2]
        return type(self)._kept

    def test_every_entry_point_with_and_without_inference_mode(self) -> None:
        figures: list[dict[str, float]] = []
        for inference_mode in (True, False):
            module, data, trainer = self._fitted(inference_mode=inference_mode)
            trainer.validate(module, datamodule=data, verbose=False)
            figures.append({k: float(v) for k, v in trainer.test(module, datamodule=data, verbose=False)[0].items()})
            predictions = trainer.predict(module, datamodule=data)
            assert predictions
            assert all(isinstance(p, Tensor) and torch.isfinite(p).all() for p in predictions)
            trainer_again = self._trainer(inference_mode=inference_mode, max_steps=1)
            trainer_again.fit(module, datamodule=data)  # nothing that evaluation left behind breaks a later fit
        assert figures[0] == figures[1]

    def test_checkpoint_loads_with_weights_only(self) -> None:
        module, data, trainer = self._fitted()
        expected = trainer.test(module, datamodule=data, verbose=False)[0]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "module.ckpt"
            trainer.save_checkpoint(path)
            torch.load(path, weights_only=True)
            again = type(module).load_from_checkpoint(path, weights_only=True, map_location="cpu")
        found = self._trainer().test(again, datamodule=self.make_data(), verbose=False)[0]
        assert found == expected

    def test_freeze_gives_a_plain_module_of_the_same_density_in_original_units(self) -> None:
        module, data = self._fitted_once()
        x = next(iter(data.test_dataloader()))
        frozen = module.freeze()
        assert not list(frozen.parameters())
        if isinstance(module, ConvexModule) and isinstance(frozen, FrozenEnergy):
            batch = module.as_batch(x, predicting=True)
            expected = module.eval().potential(batch).value(module.inputs(batch))
            torch.testing.assert_close(frozen(module.inputs(batch), context_of(batch)), expected)
        if isinstance(module, DensityTask):
            original = module.to_original(x)
            expected = module.log_prob_scaled(x) - module.log_scale
            for density in (module.log_prob, frozen):
                torch.testing.assert_close(density(original), expected, rtol=1e-5, atol=1e-4)
            seeded = module.to_original(module.sample_scaled(9, torch.Generator().manual_seed(7)))
            for model in (module, cast(FrozenDistribution, frozen)):
                torch.testing.assert_close(model.sample(9, seed=7), seeded, rtol=1e-4, atol=1e-4)
                torch.manual_seed(7)  # draws come from the global state, and so differ from call to call
                draws = torch.cat([model.sample(9), model.sample(9)])
                torch.testing.assert_close(draws[:9], seeded, rtol=1e-4, atol=1e-4)
                assert len(draws.unique(dim=0)) == 18
        assert any(p.requires_grad for p in module.parameters())

    def test_callbacks_can_ask_for_the_loss_at_a_given_latent(self) -> None:
        module, data = self._fitted_once()
        if not isinstance(module, ConvexModule):
            return  # it has no weights behind a latent
        batch = next(iter(data.train_dataloader()))
        module.train()
        latent = module.latent(batch).detach().requires_grad_()
        loss = module.batch_loss(batch, latent)
        (gradient,) = torch.autograd.grad(loss, latent)
        assert gradient.shape == (module.parameterization.num_weights,)
        assert torch.isfinite(gradient).all()

    def test_a_lift_conditions_on_what_is_known_at_evaluation(self) -> None:
        """Never on a target: neither its values nor whether it is there move the latent."""
        module, data = self._fitted_once()
        if not isinstance(module, ConvexModule):
            return
        batch = module.as_batch(next(iter(data.train_dataloader())))
        assert module.conditioning(batch).shape == (num_rows(batch), module.summary_dim)
        if isinstance(batch, Tensor) or batch.target is None:
            return
        with undisturbed(module):
            module.train()
            latents = [
                module.latent(batch._replace(target=t)) for t in (batch.target, batch.target.flip(0) + 1.0, None)
            ]
        assert torch.equal(latents[0], latents[1])
        assert torch.equal(latents[0], latents[2])

    def test_a_flow_is_the_change_of_variables_that_it_says(self) -> None:
        """With ``map`` and ``inverse_map``: log p(x) = log N(f(x); 0, I) + log|det Df(x)|, all in original units."""
        module, data = self._fitted_once()
        if not isinstance(module, DensityTask) or not hasattr(module, "inverse_map"):
            return
        x = module.to_original(next(iter(data.test_dataloader()))[:16])
        forward: Any = module.map
        inverse: Any = module.inverse_map
        columns = torch.autograd.functional.jacobian(lambda rows: forward(rows).sum(0), x)
        logdet = torch.linalg.slogdet(columns.transpose(0, 1)).logabsdet
        noise = forward(x).detach()
        expected = logdet - 0.5 * noise.square().sum(1) - 0.5 * module.dim * math.log(2.0 * math.pi)
        torch.testing.assert_close(module.log_prob(x).detach(), expected, rtol=1e-4, atol=1e-3, check_dtype=False)
        found = inverse(noise)
        assert found.converged.all()
        torch.testing.assert_close(module.to_scaled(found.x), module.to_scaled(x), rtol=1e-3, atol=1e-3)
