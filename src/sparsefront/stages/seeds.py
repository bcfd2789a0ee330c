"""Seeds of a run's stages: hashes, since sums would give a stage of one run the seed of another stage of a neighboring run."""

import hashlib

import pytorch_lightning as pl

from sparsefront.experiment import Experiment


def stage_seed(*parts: int | str) -> int:
    """In [0, 2^32), the same in every process.

    Args:
        parts: the run's seeds, and what draws: `stage_seed(0, "dense")`.
    """
    return int.from_bytes(hashlib.sha256(":".join(map(str, parts)).encode()).digest()[:4], "big")


def recovery_stage_seed(experiment: Experiment, drawn: str) -> int:
    """Of what is drawn from the recovery on: it differs between dense networks as well as between recoveries of one."""
    return stage_seed(experiment.seed, experiment.recovery_seed, drawn)


def reseed(seed: int) -> None:
    """Set the generators of Python, NumPy and torch, so that a stage draws the same whether the one before it was made
    now or found on disk.
    """
    pl.seed_everything(seed, workers=True, verbose=False)
