"""Records of a comparison that nobody ran: curves and metrics drawn from a fixed seed, in the shape that runs give."""

from typing import Any

import numpy as np

from lightning_lift.compare.records import RunRecord

# label: parameterization, learning rate, median total variation, seconds a step, latent on the shoulder at the end
ARMS: dict[str, tuple[str, dict[str, Any], float, float, float, float]] = {
    "pgd": ("ProjectedGradient", {}, 3e-3, 0.030, 0.006, 0.0),
    "direct": ("DirectSoftplus", {}, 3e-3, 0.090, 0.006, 0.55),
    "direct:latent_gain=10": ("DirectSoftplus", {"latent_gain": 10.0}, 1e-3, 0.020, 0.006, 0.35),
    "lift": ("Lift", {"body_widths": [64, 64, 96], "emission_width": 0}, 1e-3, 0.0205, 0.021, 0.30),
}
GRID = (3e-4, 1e-3, 3e-3)


def synthetic_settings(seeds: int = 30, **settings: Any) -> dict[str, Any]:
    return {
        "name": "ebm_gumbel",
        "arms": [{"label": label} for label in ARMS],
        "seeds": list(range(seeds)),
        "steps": 3000,
        "learning_rates": list(GRID),
        "budget": "steps",
        **settings,
    }


def synthetic_records(
    seeds: int = 30,
    labels: tuple[str, ...] = tuple(ARMS),
    tuning: bool = True,
    timing: bool = True,
    unfinished: bool = True,
    looks: int = 30,
) -> list[RunRecord]:
    """Final runs of each arm and seed; one of direct diverged (seed 3), one of lift failed (seed 7)."""
    records = []
    for label in labels:
        for seed in range(seeds):
            record = synthetic_record(label, seed, looks=looks)
            if unfinished and (label, seed) == ("direct", 3):
                record = broken(record, "diverged", None)
            if unfinished and (label, seed) == ("lift", 7):
                record = broken(record, "failed", "OutOfMemoryError: could not allocate <1 GiB> & more\nsecond line")
            records.append(record)
        if tuning:
            records += [
                synthetic_record(label, seed, "tune", rate, looks)
                for rate in GRID
                for seed in (1000, 1001, 1002)
            ]  # fmt: skip
        if timing:
            records.append(synthetic_record(label, 1000, "timing", looks=looks))
    return records


def synthetic_record(
    label: str, seed: int, purpose: Any = "final", rate: float | None = None, looks: int = 30
) -> RunRecord:
    name, arguments, chosen, level, per_step, shoulder = ARMS[label]
    place = list(ARMS).index(label)
    rate = chosen if rate is None else rate
    # The same part in every arm of a seed, and a part of the arm's own.
    shared, own = np.random.default_rng([seed, 1]), np.random.default_rng([seed, place, 2])
    miss = abs(float(np.log10(rate / chosen)))
    total_variation = level * float(np.exp(0.25 * shared.normal() + 0.2 * own.normal())) * (1.0 + miss)
    nll = 1.577 + total_variation**2 * 4.0 + 0.002 * float(shared.normal()) + 0.05 * miss
    steps = np.linspace(0, 3000, looks + 1)[1:]
    fall = np.exp(-steps / 350.0 / (1.0 + level))
    wave = own.normal(size=looks) * 0.02
    curves = {
        "step": steps.astype(int).tolist(),
        "seconds": (steps * per_step * (1.0 + 0.3 * float(own.random()))).tolist(),
        "train/loss": (nll + 4.0 * fall + 0.05 * wave).tolist(),
        "val/nll": (nll + 4.0 * fall + 0.01 * np.abs(wave)).tolist(),
        "val/total_variation": (total_variation * (1.0 + np.abs(wave)) + 0.5 * fall).tolist(),
        "latent/step": (rate * (3.0 if name == "Lift" else 1.0) * (0.3 + fall)).tolist(),
    }
    if name == "ProjectedGradient":
        curves["zeros/fraction"] = (0.4 * (1 - fall)).tolist()
    else:
        curves["shoulder/occupancy"] = (shoulder + (0.36 - shoulder) * fall).tolist()
    metrics = {
        point: {
            "test/nll": nll + extra,
            "test/nll_standard_error": 0.004,
            "test/total_variation": total_variation + extra,
            "val/nll": min(curves["val/nll"]) + extra,
            "val/total_variation": total_variation + extra,
        }
        for point, extra in (("best", 0.0), ("last", 0.002))
    }
    config = {
        "model": {
            "class_path": "lightning_lift.modules.LogConcaveEBM",
            "init_args": {
                "network": {
                    "class_path": "lightning_lift.networks.ICNN",
                    "init_args": {"widths": [128, 128, 128], "strong_convexity": 1e-3},
                },
                "parameterization": {"class_path": f"lightning_lift.parameterizations.{name}", "init_args": arguments},
                "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": rate, "betas": [0.9, 0.99]}},
            },
        },
        "data": {
            "class_path": "GumbelDataModule",
            "init_args": {"batch_size": 256, "data_seed": seed},
        },
        "trainer": {"max_steps": 3000, "gradient_clip_val": 1.0},
    }
    return RunRecord(
        key=f"{purpose}-{label}-lr{rate:g}-steps3000-seed{seed:03d}",
        fingerprint=f"{seed:016x}",
        arm=label,
        purpose=purpose,
        learning_rate=rate,
        seed=seed,
        steps=3000,
        outcome="finished",
        metrics=metrics,
        curves=curves,
        timings={"fit_seconds": 3000 * per_step, "seconds_per_step": per_step},
        num_parameters=33_664 if name != "Lift" else 3_281_000,
        start_hash=f"start{seed}",
        data_hash=f"data{seed}",
        checkpoints={"best": f"checkpoints/{label}/best.ckpt"},
        versions={"lightning_lift": "0.1.0", "torch": "2.13.0", "numpy": "2.3.5"},
        config=config,
    )


def broken(record: RunRecord, outcome: Any, error: str | None) -> RunRecord:
    """The same run, ended after a third."""
    record.outcome, record.error, record.metrics = outcome, error, {}
    record.curves = {name: curve[: len(curve) // 3] for name, curve in record.curves.items()}
    return record
