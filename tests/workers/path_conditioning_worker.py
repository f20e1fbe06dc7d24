"""Trains a rescaled classifier on a number of gloo processes and writes its weights; started as a script."""

import functools
import sys
from pathlib import Path

import lightning as L
import torch

from lightning_lift.callbacks import PathConditioning
from lightning_lift.datamodules import TwoMoonsDataModule
from lightning_lift.modules import ReLUClassifier, ReLUMLP


def main(processes: int, path: Path) -> None:
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    network = functools.partial(ReLUMLP, num_classes=2, widths=[16, 16])
    module = ReLUClassifier(2, network, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        callbacks=[PathConditioning(every_n_epochs=2)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=TwoMoonsDataModule(num_train=64, batch_size=32 // processes))
    if trainer.is_global_zero:
        torch.save(module.state_dict(), path)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
