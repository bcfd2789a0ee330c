"""The cache key of each stage: a chain in which each key contains the digest of the previous one.

Keys depend only on the configuration and on source code, so a finished run is recognized without opening any stage. The
source code of a stage is everything reachable by imports from its module and from the classes that the configuration names.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch

from sparsefront.allocation.base import MeasuringAllocation
from sparsefront.artifacts.code_digest import code_digest, find_module, source_of
from sparsefront.artifacts.content_digest import IN_CACHE, by_content, digest, remembering, versions
from sparsefront.config.experiment import Experiment
from sparsefront.errors import InvalidSetting
from sparsefront.models.unpadded import UNPADDED
from sparsefront.provenance import processor_facts

KERNELS = (
    "SPARSEFRONT_KERNELS"  # environment variable of `cuda_library`, whose import would count as code of every stage
)

# What decides each key, with all that it imports: groups of the configuration, whose classes count, and modules of `stages`.
CODE = {
    "dense": ("model dataset recipe trainer", "network dense"),
    "teacher": ("model dataset recovery", "teacher"),
    "prune": ("pattern importance allocation", "prune"),
    "choice_times": ("pattern importance allocation kernel", "latency_search"),
    "recover": ("schedule recovery recipe", "recover"),
    "export": ("", "export"),
    "place": ("kernel precision measure", "bench measure"),
    "dense_quality": ("measure", "bench"),
    "control": ("recipe", "control"),
    "distilled": ("recovery", ""),
}


def _code(experiment: Experiment, key: str, **options: Any) -> str:
    """Digest of the code that decides a key; options as in `code_digest`.

    Raises:
        InvalidSetting: the class of a part has no source file.
    """
    groups, stages = (names.split() for names in CODE[key])
    parts = [root for group in groups for root in _roots(experiment, group)]
    return code_digest(*parts, *(f"sparsefront.stages.{stage}" for stage in stages), **options)


def _roots(experiment: Experiment, group: str) -> list[str]:
    """The modules that define the classes of a part and of its components, and what every `_target_` names, which may be a class
    that another module re-exports.
    """
    part = getattr(experiment, group)
    kind = type(part)
    if find_module(kind.__module__)[0] is None:
        target = f"{kind.__module__}.{kind.__qualname__}"
        raise InvalidSetting(f"{group}._target_", target, "must be a class in a file: its code is part of every key")
    inside = [type(inner).__module__ for inner in getattr(part, "parts", ())]
    return [kind.__module__, *inside, *getattr(part, "loaded_modules", ()), *_targets(experiment.settings[group])]


def _targets(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict):
        target = settings.get("_target_")
        if isinstance(target, str):
            yield target
        settings = list(settings.values())
    if isinstance(settings, list | tuple):
        for value in settings:
            yield from _targets(value)


# Seeds of stages. They are hashes, because sums would give stages of neighboring runs the same seed.


def stage_seed(*parts: int | str) -> int:
    """A seed in [0, 2^32), the same in every process.

    Args:
        parts: the run's seeds and the name of the draw: `stage_seed(0, "dense")`.
    """
    return int.from_bytes(hashlib.sha256(":".join(map(str, parts)).encode()).digest()[:4], "big")


def recovery_stage_seed(experiment: Experiment, drawn: str) -> int:
    """Seed for draws from the recovery on; differs between dense networks and between recoveries of one."""
    return stage_seed(experiment.seed, experiment.recovery_seed, drawn)


def reseed(seed: int) -> None:
    """Seed Python, NumPy and torch, so that a stage draws the same numbers whether the previous one was computed or found on
    disk.
    """
    pl.seed_everything(seed, workers=True, verbose=False)


# The keys of all stages.

# recipe settings that only matter after pruning
AFTER_PRUNING = ("recovery_epochs", "recovery_steps", "recovery_lr", "ignore")


@dataclass(frozen=True)
class StageKeys:
    """JSON-able key per stage; equal keys mean equal stages. `dense_quality` is for the dense network's metric.

    `teacher`: for the teacher's stored logits, without the digest of its weights.
    `structure`: for the smaller network that is pruned, made by another stage prune; `smaller`: for its own recovery.
    `choice_times` and `choice_table`: for a latency search's measurements, without and with the errors of one network.
    `control` and `control_quality`: for the further trained dense network and its metric. Each is None if not needed.
    """

    dense: dict[str, Any]
    teacher: dict[str, Any] | None
    structure: dict[str, Any] | None
    smaller: dict[str, Any] | None
    prune: dict[str, Any]
    choice_times: dict[str, Any] | None
    choice_table: dict[str, Any] | None
    recover: dict[str, Any]
    export: dict[str, Any]
    swap: dict[str, Any]
    dense_quality: dict[str, Any]
    control: dict[str, Any] | None
    control_quality: dict[str, Any] | None
    measure: dict[str, Any]
    result: dict[str, Any]

    def dense_low_quality(self, precision: str) -> dict[str, Any]:
        """For the dense network's metric in a low precision; shared by all points of a sweep, whatever their sparse precision."""
        return {
            "dense_quality": digest(self.dense_quality),
            "precision": precision,
            "batch": [values[:1] for values in self.swap["batch"]],
            "place": self.measure["place"],
        }


def stage_keys(experiment: Experiment) -> StageKeys:
    """Compute the cache keys of this experiment's stages.

    Raises:
        InvalidSetting: the class of a part has no source file.
    """
    with remembering(experiment.cache_dir / IN_CACHE):
        return _stage_keys(experiment)


def _stage_keys(experiment: Experiment) -> StageKeys:
    settings, code, sizes = partial(_settings, experiment), partial(_code, experiment), experiment.measure
    dense = _dense(experiment)
    place = (
        _device(experiment)
        | _left_out_kernels()
        | {
            # launch parameters tuned by a swap are results, not inputs
            "versions": versions("torch", "triton", "quack-kernels", "nvidia-cutlass-dsl"),
            "code": code("place", kernels=True),
        }
    )
    structure = None if experiment.shrinking is None else _prune(experiment.shrinking, dense)
    first = experiment.smaller_recovery
    smaller = None if first is None or structure is None else _recover(first, structure)
    before = {"structure": structure, "smaller": smaller}
    prune = _prune(experiment, dense) | {stage: digest(key) for stage, key in before.items() if key is not None}
    choice_times = _choice_times(experiment, dense, prune, place)
    choice_table = _choice_table(experiment, prune, choice_times)
    if choice_table is not None:
        prune["choice_table"] = digest(choice_table)
    recover = _recover(experiment.own_recovery, prune)
    export = {"recover": digest(recover), "code": code("export")}
    unpadded = {UNPADDED: digest(place)} if experiment.inference.unpadded else {}
    swap = {
        "export": digest(export),
        "kernel": settings("kernel"),
        "precision": _precision(experiment),
        "batch": [sizes.batch_sizes, sizes.sequence_lengths],
        "image_size": sizes.image_size,
        "mode": sizes.mode,
        "place": place,
        **unpadded,
    }
    dense_quality = {
        "dense": digest(dense),
        "batch_size": sizes.batch_sizes[0],  # text is padded to the longest row of its batch
        "limit": sizes.evaluate_limit,
        "device": _device(experiment),
        "versions": versions("torch", "torchmetrics"),
        "code": code("dense_quality"),
        **unpadded,
        **{name: getattr(experiment.dataset, name) for name in sorted(experiment.dataset.of_evaluation)},
    }
    control = _control(experiment, dense)
    control_quality = None if control is None else dense_quality | {"dense": digest(control)}
    pruned = experiment.pattern.prunes
    measure = {
        "dense_quality": digest(dense_quality),
        "prunable": _prunable(experiment),
        "export": digest(export) if pruned else None,
        "swap": digest(swap) if pruned and experiment.swaps else None,
        "measure": settings("measure"),
        "precision": _precision(experiment),
        "processor": processor_facts(sizes.torch_device),
        "place": place,
    }
    # only the two modules that write the record: all that they read is in other keys
    record = ("sparsefront.results.record", "sparsefront.stages.report")
    result = {
        "measure": digest(measure),
        "control": None if control_quality is None else digest(control_quality),
        "code": [source_of(find_module(module)[0]).digest for module in record],
    }
    return StageKeys(
        dense,
        _teacher(experiment, dense),
        structure,
        smaller,
        prune,
        choice_times,
        choice_table,
        recover,
        export,
        swap,
        dense_quality,
        control,
        control_quality,
        measure,
        result,
    )


def _dense(experiment: Experiment) -> dict[str, Any]:
    model = _settings(experiment, "model")
    return {
        "model": by_content(experiment.model.fingerprint()),
        "model_settings": {key: value for key, value in model.items() if key not in experiment.model.for_pruning},
        "dataset": by_content(experiment.dataset.drop_unlabeled().fingerprint()),
        "recipe": dense_recipe(_settings(experiment, "recipe")),
        "trainer": experiment.trainer.cache_key(),
        "seed": experiment.seed,
        "code": _code(experiment, "dense"),
        "versions": versions(
            "torch", "torchvision", "transformers", "pytorch-lightning", *experiment.dataset.libraries
        ),
    }


def _teacher(experiment: Experiment, dense: dict[str, Any]) -> dict[str, Any] | None:
    recovery = experiment.continued_recovery
    if recovery is None or not recovery.store_teacher:
        return None
    return {
        "dense": digest(dense),
        "teacher": recovery.fingerprint(),
        "dataset": by_content(experiment.dataset.fingerprint()),
        "batch_size": experiment.recipe.batch_size,
        "code": _code(experiment, "teacher"),
    }


def dense_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe settings that determine the dense weights; none for a checkpoint that is not trained."""
    if recipe.get("epochs") == 0:
        return {"epochs": 0}
    return {key: value for key, value in recipe.items() if key not in AFTER_PRUNING}


def _control(experiment: Experiment, dense: dict[str, Any]) -> dict[str, Any] | None:
    """Independent of what was pruned and how: points of a sweep share one control."""
    if experiment.control is None or (recovery := experiment.continued_recovery) is None:
        return None
    plan, recipe = recovery.plan(experiment.recipe, 1), _settings(experiment, "recipe")
    curve = plan.optimization
    short = _step_a_round(experiment, plan.epochs) if plan.steps is None else plan.steps < experiment.recovery_rounds
    more_steps = not recovery.repeats and short
    step_a_round = {"steps": experiment.recovery_rounds} if more_steps else {}
    return {
        "dense": digest(dense),
        "recipe": {key: value for key, value in recipe.items() if key not in AFTER_PRUNING},
        "epochs": [plan.epochs, curve.total_steps, curve.first_step],
        "rounds": experiment.recovery_rounds if recovery.repeats else 1,
        "lr": curve.lr,
        "trainer": experiment.trainer.cache_key(),
        "seeds": [experiment.seed, experiment.recovery_seed],
        "code": _code(experiment, "control"),
        "versions": versions("torch", "pytorch-lightning"),
        **step_a_round,
        **(_describe_teaching(experiment) if experiment.control == "dense_distilled" else {}),
    }


def _describe_teaching(experiment: Experiment) -> dict[str, Any]:
    """What determines the loss of a recovery with a teacher."""
    left_out = ("quantize", "backend", "dense_after")  # only affect the pruned network
    taught = {key: value for key, value in _settings(experiment, "recovery").items() if key not in left_out}
    return {
        "recovery": [taught, experiment.recovery.fingerprint()],
        "prunable": _prunable(experiment),
        "recovery_code": _code(experiment, "distilled"),
        **_describe_unlabeled(experiment),
    }


def _describe_unlabeled(experiment: Experiment) -> dict[str, Any]:
    """The data of a recovery that also takes rows without a label; empty if it takes those of the dense run."""
    return {"dataset": by_content(experiment.dataset.fingerprint())} if experiment.unlabeled else {}


def _step_a_round(experiment: Experiment, epochs: int) -> bool:
    """Whether rounds that share a budget exceed it, because each takes at least one step. Without a limit of batches no key can
    tell: see `control.require_same_steps`.
    """
    limit = experiment.trainer.limit_batches
    if limit is None:
        return False
    return epochs * math.ceil(limit / experiment.trainer.accumulate_grad_batches) < experiment.recovery_rounds


def _prune(experiment: Experiment, dense: dict[str, Any]) -> dict[str, Any]:
    # if the network was trained here, its key already contains the batch size
    pattern = experiment.pattern
    calibrates = (
        experiment.importance.source in ("gradients", "inputs")
        or isinstance(experiment.allocation, MeasuringAllocation)
        or (pattern.takes_blocks and getattr(pattern, "choose", None) == "importance")
    )
    batch_size = {"batch_size": experiment.recipe.batch_size} if experiment.recipe.epochs == 0 and calibrates else {}
    return {
        "dense": digest(dense),
        "prunable": _prunable(experiment),
        "pattern": _settings(experiment, "pattern"),
        "importance": _settings(experiment, "importance"),
        "allocation": [
            experiment.allocation.name,
            _settings(experiment, "allocation"),
            experiment.allocation.fingerprint(),
        ],
        "sparsity": experiment.sparsity,
        "first_sparsity": experiment.schedule.sparsity_at(0.0, experiment.sparsity),
        "masks_nest": experiment.schedule.masks_nest,
        "ignore": experiment.recipe.ignore,
        "code": _code(experiment, "prune"),
        **batch_size,
    }


def _recover(experiment: Experiment, prune: dict[str, Any]) -> dict[str, Any]:
    return {
        "prune": digest(prune),
        "schedule": _settings(experiment, "schedule"),
        "recovery": [_settings(experiment, "recovery"), experiment.recovery.fingerprint()],
        "recipe": _settings(experiment, "recipe"),
        "code": _code(experiment, "recover"),
        **_describe_unlabeled(experiment),
    }


def _choice_times(
    experiment: Experiment, dense: dict[str, Any], prune: dict[str, Any], place: dict[str, Any]
) -> dict[str, Any] | None:
    """The times measured by a latency search, which depend on neither the training nor its seed."""
    if not isinstance(experiment.allocation, MeasuringAllocation):
        return None
    return {
        **{name: dense[name] for name in ("model", "model_settings", "dataset")},
        **{name: prune[name] for name in ("prunable", "pattern", "importance", "sparsity", "ignore")},
        "kernel": _settings(experiment, "kernel"),
        "measure": {key: value for key, value in _settings(experiment, "measure").items() if key != "dense_low"},
        "place": place,
        "code": _code(experiment, "choice_times"),
    }


def _choice_table(
    experiment: Experiment, prune: dict[str, Any], choice_times: dict[str, Any] | None
) -> dict[str, Any] | None:
    """`_choice_times` plus everything that masks depend on except the latency."""
    if choice_times is None or not isinstance(experiment.allocation, MeasuringAllocation):
        return None
    masks = {name: value for name, value in prune.items() if name not in ("allocation", "first_sparsity", "masks_nest")}
    return masks | {
        "calibration_batches": experiment.allocation.calibration_batches,
        "choice_times": digest(choice_times),
    }


def _prunable(experiment: Experiment) -> dict[str, Any]:
    """What determines the prunable layers: the model settings that do not affect dense weights."""
    model = _settings(experiment, "model")
    return {key: value for key, value in model.items() if key in experiment.model.for_pruning}


def _precision(experiment: Experiment) -> list[Any]:
    """Precision of the sparse network and, if it needs calibration data, the batch size for it."""
    rows = [experiment.recipe.batch_size] if experiment.precision.calibrates else []
    return [_settings(experiment, "precision"), *rows]


def _device(experiment: Experiment) -> dict[str, Any]:
    device = experiment.measure.torch_device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(experiment.measure.torch_dtype),
    }


def _left_out_kernels() -> dict[str, str]:
    value = os.environ.get(KERNELS, "")
    if value not in ("", "triton"):
        raise InvalidSetting(KERNELS, value, "is triton, or unset for all kernels")
    return {"kernels": value} if value else {}


def _settings(experiment: Experiment, group: str) -> Any:
    """A group's settings, with paths replaced by content digests and without settings covered by the part's fingerprint."""
    settings, left_out = experiment.settings[group], getattr(getattr(experiment, group), "fingerprinted", ())
    if not isinstance(settings, dict):
        return settings
    return by_content({key: value for key, value in settings.items() if key not in left_out})
