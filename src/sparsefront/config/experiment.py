"""One experiment: the settings objects of every group, built and checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefront.allocation.base import Allocation
from sparsefront.artifacts.content_digest import digest
from sparsefront.config.schema import STAGES
from sparsefront.data.base import Dataset
from sparsefront.importance.base import Importance
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.precision import PrecisionChoice, unsupported_reason
from sparsefront.measure.decode import int8_unavailable_reason
from sparsefront.measure.settings import INT8_WEIGHT_ONLY, DenseLow, Measure
from sparsefront.models.base import Model
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.recovery.base import Recovery, RecoverySetup
from sparsefront.recovery.training import TrainingRecovery
from sparsefront.results.loggers import Logging
from sparsefront.results.run_report import Report
from sparsefront.schedule.base import Schedule
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings

# Groups that change nothing of what is computed, only where it goes.
OUTPUT_GROUPS = ("report", "logger")


@dataclass(frozen=True, eq=False)
class Experiment:
    """What `validate` hands to the pipeline.

    Args:
        choices: group -> name of the chosen option, as typed on the command line.
        settings: group -> its configuration as plain containers, for keys, provenance and loggers.
        seed: of the dense network, and of what prunes it; `recovery_seed`: of its recovery.
        sparsity: fraction of zeros among the prunable weights, in [0, 1); 0 for pattern=dense.
        control: dense_continued, or None: there is none, or nothing is trained after pruning that it could match.
        output_dir: Hydra's directory of this run.
        sweep: name of the sweep that this run is a point of, or None.
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
    pattern: Pattern
    importance: Importance
    allocation: Allocation
    schedule: Schedule
    recovery: Recovery
    recipe: Recipe
    kernel: KernelChoice
    precision: PrecisionChoice
    measure: Measure
    report: Report
    trainer: TrainerSettings
    logger: Logging

    @property
    def name(self) -> str:
        """Short, for people: what was chosen."""
        unit = "" if getattr(self.pattern, "granularity", None) is None else f"-{self.pattern.granularity}"
        low = f"-{self.precision.mode}" if self.precision.is_low else ""
        return (
            f"{self.choices['model']}-{self.choices['dataset']}-{self.choices['pattern']}{unit}-{self.sparsity:g}{low}"
        )

    @property
    def leaves_dense(self) -> bool:
        """Whether the recovery lifts the masks, so that what was pruned ends as a dense network."""
        return self.pattern.prunes and self.recovery.leaves_dense

    @property
    def swaps(self) -> bool:
        """Whether kernels are swapped in; otherwise the result has masked accuracy and no sparse latency."""
        return "swap" in self.stages and not self.kernel.swaps_nothing and not self.leaves_dense

    @property
    def dense_low(self) -> tuple[DenseLow, ...]:
        """Low precisions that the dense network is measured in beside `measure.dtype`, as a baseline of its own: those asked for;
        else fp8 where it is timed and the GPU has it, and that of the sparse network;
        with mode=decode int8_weight_only. A run of the dense network in a low
        precision has none of its own.
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
        found: list[DenseLow] = []
        if timed and unsupported_reason("fp8", device, measure.torch_dtype) is None:
            found.append("fp8")
        return tuple(dict.fromkeys(found if own is None else [*found, own]))

    @property
    def pruning(self) -> PruningSettings:
        """How masks are made."""
        return PruningSettings(self.pattern, self.sparsity, self.importance, self.allocation, self.schedule)

    @property
    def val_seen(self) -> bool:
        """Whether a checkpoint may have been trained on the held-out part of train: no choice may then rest on it.

        One that is taken as it is may have seen all of train; of one that is trained on here only the known ones count.
        """
        model, dataset = self.model, self.dataset
        finished = self.recipe.epochs == 0 and dataset.val_of_train
        return model.checkpoint is not None and (finished or model.trained_on == dataset.name)

    @property
    def continued_recovery(self) -> TrainingRecovery | None:
        """The recovery, where it trains a pruned network: only then can the dense one be trained on for the same budget."""
        training = self.recovery.training
        return training if self.pattern.prunes and isinstance(training, TrainingRecovery) else None

    @property
    def recovery_rounds(self) -> int:
        """Of the schedule."""
        return len(self.schedule.round_sparsities(self.sparsity))

    def recovery_setup(self) -> RecoverySetup:
        """What the recovery goes by, before any network is built."""
        return RecoverySetup(
            pruning=self.pruning,
            recipe=self.recipe,
            trainer=self.trainer,
            architecture=lambda: self.model.skeleton(self.dataset.info),
            prunable=self.model.prunable,
            epoch_weights=self.recipe.save_epoch_weights,
        )

    def continues_to(self, stage: str) -> bool:
        """Whether this stage, or one after it, is asked for; without pruning there is nothing to prune, recover and export."""
        if stage in ("prune", "recover", "export") and not self.pattern.prunes:
            return False
        return any(STAGES.index(asked) >= STAGES.index(stage) for asked in self.stages)

    @property
    def config_hash(self) -> str:
        """Digest of what was typed, defaults filled in: the groups but `OUTPUT_GROUPS`, sparsity, seed and control.

        It does not tell whether two results are of the same networks; the keys of `stages.keys` do. What changes no number
        counts too (`dataset.num_workers`, `trainer.progress_bar`), `stages` does not, and data and models count by their
        path or branch, not by what lies there.
        """
        return digest(
            {
                "settings": {group: value for group, value in self.settings.items() if group not in OUTPUT_GROUPS},
                "sparsity": self.sparsity,
                "seed": self.seed,
            }
            | ({} if self.control is None else {"control": self.control})
        )
