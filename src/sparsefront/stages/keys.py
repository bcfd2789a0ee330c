"""What determines each stage: one chain, each link holding the digest of the one before.

Keys follow from the configuration and the sources alone, so a finished run is recognised without opening any stage.
"""

from dataclasses import dataclass
from typing import Any

import torch

from sparsefront.artifacts.digest import code_digest, digest, versions
from sparsefront.artifacts.kernel_sources import kernel_sources_digest
from sparsefront.experiment import Experiment
from sparsefront.processor import processor_facts

# keys of the recipe that only matter after pruning
AFTER_PRUNING = ("recovery_epochs", "recovery_lr", "keep_dense")


@dataclass(frozen=True)
class StageKeys:
    """JSON-able content per stage; equal content means an equal stage. `dense_quality` is the dense network's metric."""

    dense: dict[str, Any]
    prune: dict[str, Any]
    recover: dict[str, Any]
    export: dict[str, Any]
    swap: dict[str, Any]
    dense_quality: dict[str, Any]
    measure: dict[str, Any]
    row: dict[str, Any]


def stage_keys(experiment: Experiment) -> StageKeys:
    dense = _dense(experiment)
    prune = _prune(experiment, dense)
    recover = {
        "prune": digest(prune),
        "schedule": experiment.settings["schedule"],
        "recovery": [experiment.settings["recovery"], experiment.recovery.fingerprint()],
        "recipe": experiment.settings["recipe"],
        "code": code_digest(
            "sparsefront.schedule",
            "sparsefront.recovery",
            "sparsefront.stages.recover",
            "sparsefront.stages.finished_rounds",
        ),
    }
    export = {
        "recover": digest(recover),
        "code": code_digest(
            "sparsefront.export", "sparsefront.patterns", "sparsefront_kernels", "sparsefront.stages.export"
        ),
    }
    place = _place(experiment)
    swap = {
        "export": digest(export),
        "kernel": experiment.settings["kernel"],
        "batch": [experiment.measure.batch_sizes, experiment.measure.sequence_lengths],
        "place": place,
    }
    dense_quality = {
        "dense": digest(dense),
        "batch_size": experiment.measure.batch_sizes[0],  # text is padded to the longest of its batch
        "limit": experiment.measure.evaluate_limit,
        "place": place,
    }
    pruned = experiment.pattern.name != "dense"
    measure = {
        "dense_quality": digest(dense_quality),
        "prunable": _prunable(experiment),
        "export": digest(export) if pruned else None,
        "swap": digest(swap) if pruned and experiment.swaps else None,
        "measure": experiment.settings["measure"],
        "processor": processor_facts(experiment.measure.torch_device),
    }
    row = {
        "measure": digest(measure),
        "code": code_digest("sparsefront.report.row", "sparsefront.report.row_groups", "sparsefront.stages.report"),
    }
    return StageKeys(dense, prune, recover, export, swap, dense_quality, measure, row)


def _dense(experiment: Experiment) -> dict[str, Any]:
    recipe = experiment.settings["recipe"]
    return {
        "model": experiment.model.fingerprint(),
        "dataset": experiment.dataset.fingerprint(),
        "recipe": {key: value for key, value in recipe.items() if key not in AFTER_PRUNING},
        "trainer": experiment.trainer.determines(),
        "seed": experiment.seed,
        "code": code_digest(
            "sparsefront.models",
            "sparsefront.datasets",
            "sparsefront.tasks",
            "sparsefront.training",
            "sparsefront.stages.network",
            "sparsefront.stages.dense",
        ),
        "versions": versions("torch", "torchvision", "transformers", "pytorch-lightning"),
    }


def _prune(experiment: Experiment, dense: dict[str, Any]) -> dict[str, Any]:
    return {
        "dense": digest(dense),
        "prunable": _prunable(experiment),
        "pattern": experiment.settings["pattern"],
        "importance": experiment.settings["importance"],
        "allocation": [
            experiment.allocation.name,
            experiment.settings["allocation"],
            experiment.allocation.fingerprint(),
        ],
        "sparsity": experiment.sparsity,
        "first_sparsity": experiment.schedule.sparsity_at(0.0, experiment.sparsity),
        "keep_dense": experiment.recipe.keep_dense,
        "code": code_digest(
            "sparsefront.patterns",
            "sparsefront.importance",
            "sparsefront.obs",
            "sparsefront.allocation",
            "sparsefront.pruning",
            "sparsefront.stages.prune",
        ),
    }


def _prunable(experiment: Experiment) -> dict[str, Any]:
    """What decides which layers may be pruned: of the model's settings the part that leaves dense weights alone."""
    return {"prune_head": experiment.model.prune_head}


def _place(experiment: Experiment) -> dict[str, Any]:
    """Where numbers are taken, in what, and by which code."""
    device = experiment.measure.torch_device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(experiment.measure.torch_dtype),
        "versions": versions("torch", "triton", "quack-kernels", "nvidia-cutlass-dsl"),
        "code": code_digest(
            "sparsefront.inference",
            "sparsefront.measure",
            "sparsefront_kernels",
            "sparsefront.stages.bench",
            "sparsefront.stages.measure",
            "sparsefront.stages.speed",
        ),
        "kernel_sources": kernel_sources_digest("sparsefront_kernels"),
    }
