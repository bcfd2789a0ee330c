"""An experiment: the validated settings objects of all groups."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsefront.allocation.base import Allocation
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.artifacts.content_digest import digest
from sparsefront.config.schema import STAGES
from sparsefront.data.base import Dataset
from sparsefront.importance.base import Importance
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.precision import PrecisionChoice, explain_refusal
from sparsefront.measure.decode import int8_unavailable_reason
from sparsefront.measure.settings import INT8_WEIGHT_ONLY, DenseLow, Measure
from sparsefront.models.base import Model
from sparsefront.models.unpadded import Inference
from sparsefront.patterns.base import Pattern, to_record
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.structured import Structured
from sparsefront.recovery.base import Recovery, RecoverySetup
from sparsefront.recovery.training import TrainingRecovery
from sparsefront.results.loggers import Logging
from sparsefront.results.run_report import Report
from sparsefront.schedule.base import Schedule
from sparsefront.schedule.one_shot import OneShot
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

# Groups that only affect where results go.
OUTPUT_GROUPS = ("report", "logger")


@dataclass(frozen=True, eq=False)
class Experiment:
    """The result of `validate`, used by the pipeline.

    Args:
        choices: group -> name of the chosen option, as on the command line; but see `pattern_name`.
        settings: group -> its configuration as plain containers, for keys, provenance and loggers.
        seed: of the dense network and of pruning; `recovery_seed`: of the recovery.
        sparsity: fraction of zeros among the prunable weights, in [0, 1); 0 for pattern=dense.
        control: dense_continued, or None if not requested, or if nothing is trained after pruning that it could match.
        output_dir: Hydra's directory of this run.
        sweep: name of the sweep that this run belongs to, or None.
    """

    choices: dict[str, str]
    settings: dict[str, dict[str, Any]]
    sparsity: float
    granularity: int | str | None
    seed: int
    recovery_seed: int
    control: str | None
    stages: tuple[str, ...]
    reuse: bool
    optimize: tuple[str, ...]
    cache_dir: Path
    results_dir: Path
    output_dir: Path
    sweep: str | None
    model: Model
    dataset: Dataset
    structured: Structured
    pattern: Pattern
    importance: Importance
    allocation: Allocation
    schedule: Schedule
    recovery: Recovery
    recipe: Recipe
    kernel: KernelChoice
    precision: PrecisionChoice
    inference: Inference
    measure: Measure
    report: Report
    trainer: TrainerSettings
    logger: Logging

    @property
    def name(self) -> str:
        """Short description of the choices."""
        unit = "" if getattr(self.pattern, "granularity", None) is None else f"-{self.pattern.granularity}"
        low = f"-{self.precision.mode}" if self.precision.is_low else ""
        smaller = f"-{self.structured.name}-{self.structured.sparsity:g}" if self.shrinking is not None else ""
        network = f"{self.choices['model']}-{self.choices['dataset']}{smaller}"
        return f"{network}-{self.pattern_name}{unit}-{self.sparsity:g}{low}"

    @property
    def pattern_name(self) -> str:
        """The chosen pattern; with pattern=dense, the one that `structured` stands for."""
        stands_for = self.pattern.prunes and self.structured.name != self.choices["structured"]
        return self.pattern.name if stands_for else self.choices["pattern"]

    @property
    def shrinking(self) -> "Experiment | None":
        """The experiment whose stage prune makes the network smaller before `pattern` prunes it; None if it stays as it is."""
        pattern = self.structured.pattern
        if pattern is None:
            return None
        parts = {"structured": Structured(), "pattern": pattern, "allocation": PerLayer(), "schedule": OneShot()}
        settings = {group: to_record(part) for group, part in parts.items()}  # type: ignore[arg-type]  # of any dataclass
        choices = {group: part.name for group, part in parts.items()}  # type: ignore[attr-defined]
        return replace(
            self,
            choices=self.choices | choices,
            settings=self.settings | settings,
            sparsity=self.structured.sparsity,
            granularity=None,
            kernel=KernelChoice(),
            **parts,
        )

    @property
    def smaller_recovery(self) -> "Experiment | None":
        """`shrinking` with its share of the recovery's steps; None if all of them follow the pruning."""
        shrinking, steps = self.shrinking, self.recipe.recovery_steps or 0
        first = round(self.structured.recovery_share * steps)
        return None if shrinking is None or not first else shrinking._with_recovery_steps(first)

    @property
    def own_recovery(self) -> "Experiment":
        """This experiment with the recovery steps that `smaller_recovery` leaves."""
        first = self.smaller_recovery
        if first is None or self.recipe.recovery_steps is None or first.recipe.recovery_steps is None:
            return self
        return self._with_recovery_steps(self.recipe.recovery_steps - first.recipe.recovery_steps)

    def _with_recovery_steps(self, steps: int) -> "Experiment":
        recipe = replace(self.recipe, recovery_steps=steps)
        return replace(
            self,
            recipe=recipe,
            settings=self.settings | {"recipe": self.settings["recipe"] | {"recovery_steps": steps}},
        )

    @property
    def leaves_dense(self) -> bool:
        """Whether the recovery lifts the masks and ends with a dense network."""
        return self.pattern.prunes and self.recovery.leaves_dense

    @property
    def swaps(self) -> bool:
        """Whether kernels are swapped in; otherwise the result has masked accuracy and no sparse latency."""
        return "swap" in self.stages and not self.kernel.swaps_nothing and not self.leaves_dense

    @property
    def dense_low(self) -> tuple[DenseLow, ...]:
        """Low precisions of additional dense baselines besides `measure.dtype`: the configured ones; else fp8 if the GPU
        supports it and latency is measured, and that of the sparse network; with mode=decode int8_weight_only. None for a
        dense run in low precision.
        """
        own, measure = self.precision.of_dense, self.measure
        if measure.dense_low is not None:
            return tuple(measure.dense_low)
        if measure.mode == "decode":
            on_gpu = measure.latency and measure.torch_device.type == "cuda"
            return (INT8_WEIGHT_ONLY,) if on_gpu and int8_unavailable_reason() is None else ()
        if own is not None and not self.pattern.prunes:
            return ()
        device = measure.torch_device
        timed = measure.latency and device.type == "cuda"
        precisions: list[DenseLow] = []
        if timed and explain_refusal("fp8", device, measure.torch_dtype) is None:
            precisions.append("fp8")
        return tuple(dict.fromkeys(precisions if own is None else [*precisions, own]))

    @property
    def pruning(self) -> PruningSettings:
        """How masks are made."""
        return PruningSettings(self.pattern, self.sparsity, self.importance, self.allocation, self.schedule)

    @property
    def val_seen(self) -> bool:
        """Whether a checkpoint may have been trained on the held-out part of train, so that choices must not depend on it.

        A checkpoint used without training may have seen all of train; for one trained further here, only known ones count.
        """
        model, dataset = self.model, self.dataset
        finished = self.recipe.epochs == 0 and dataset.val_of_train
        return model.checkpoint is not None and (finished or model.trained_on == dataset.name)

    @property
    def continued_recovery(self) -> TrainingRecovery | None:
        """The recovery, if it trains a pruned network: only then can the dense one be continued with the same budget."""
        training = self.recovery.training
        return training if self.pattern.prunes and isinstance(training, TrainingRecovery) else None

    @property
    def unlabeled(self) -> bool:
        """Whether the recovery's rows include some without a label."""
        return self.dataset.drop_unlabeled() is not self.dataset

    @property
    def recovery_rounds(self) -> int:
        """Number of rounds of the schedule."""
        return len(self.schedule.round_sparsities(self.sparsity))

    def recovery_setup(self) -> RecoverySetup:
        """The setup of the recovery, before any network is built."""
        return RecoverySetup(
            pruning=self.pruning,
            recipe=self.recipe,
            trainer=self.trainer,
            architecture=lambda: self.model.skeleton(self.dataset.info),
            prunable=self.model.prunable,
            epoch_weights=self.recipe.save_epoch_weights,
        )

    def continues_to(self, stage: str) -> bool:
        """Whether this stage, or a later one, is requested; without pruning there is nothing to prune, recover or export."""
        if stage in ("prune", "recover", "export") and not self.pattern.prunes:
            return False
        return any(STAGES.index(asked) >= STAGES.index(stage) for asked in self.stages)

    @property
    def config_hash(self) -> str:
        """Digest of the settings including defaults: all groups except `OUTPUT_GROUPS`, sparsity, seed and control.

        It does not identify equal networks; the keys of `stages.keys` do. Settings that affect no number count
        (`dataset.num_workers`, `trainer.progress_bar`), `stages` does not, and data and models count by path or branch, not by
        content.
        """
        left_out = [
            *OUTPUT_GROUPS,
            *["structured"] * (self.shrinking is None),
            *["inference"] * (not self.inference.unpadded),
        ]
        return digest(
            {
                "settings": {group: value for group, value in self.settings.items() if group not in left_out},
                "sparsity": self.sparsity,
                "seed": self.seed,
            }
            | ({} if self.control is None else {"control": self.control})
        )
