"""The control of a comparison: the dense network trained further, unpruned, with exactly the budget of the recovery.

Sparse networks train after pruning, and part of their accuracy is due to that training alone. One control serves all points
of a sweep whose recoveries take the same steps at the same learning rates; it does not depend on pattern, sparsity or
schedule. `dense_continued` learns from labels, even if the recovery has a teacher; `dense_distilled` uses the recovery's loss
and teacher.
"""

import json
import logging
import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.config.sweeps import note_work
from sparsefront.errors import InvalidSetting
from sparsefront.progress import counted
from sparsefront.recovery.training import TrainingPlan
from sparsefront.stages.bench import OUTCOMES, EvalContext, evaluate_splits
from sparsefront.stages.keys import StageKeys, recovery_stage_seed, reseed
from sparsefront.stages.network import find_unfinished, load_net, make_task, weights_digest
from sparsefront.stages.teacher import get_or_compute_logits, open_taught
from sparsefront.tasks.outcomes import Outcomes, load_outcomes, save_outcomes
from sparsefront.training.fit import fit, steps_per_epoch
from sparsefront.training.ranks import other_ranks_running
from sparsefront.training.recipe import Optimization
from sparsefront.training.resume import WEIGHTS, save_weights

log = logging.getLogger(__name__)
DISTILLED = "dense_distilled"


@dataclass(frozen=True)
class RepeatedCurve(Optimization):
    """Repeats the learning rates of one round, as rewinding recoveries do.

    Args:
        period: optimizer steps of a round.
    """

    period: int = 1

    def factor(self, step: int) -> float:
        return super().factor(step % self.period)


def begin(experiment: Experiment, store: ArtifactStore, keys: StageKeys, dense: Artifact, loggers: list) -> None:
    """Train the control before the recovery, unless another run is training it; this run then recovers meanwhile."""
    if keys.control is not None and not store.is_made_elsewhere(_kind(experiment), keys.control):
        _obtain(experiment, store, keys, dense, loggers)


def run(
    experiment: Experiment, store: ArtifactStore, keys: StageKeys, dense: Artifact, recovered: Artifact, loggers: list
) -> Artifact | None:
    """Write weights.safetensors and training.json; returns None if the experiment has no control.

    Raises:
        InvalidSetting: the control took other steps than the recovery, whose budget has fewer steps than rounds.
    """
    if keys.control is None:
        return None
    continued = _obtain(experiment, store, keys, dense, loggers)
    recovery_steps = sum(record["steps"] for record in recovered.read_json("training.json")["rounds"])
    taken = continued.read_json("training.json")["steps"]
    if taken != recovery_steps:
        steps = f"took {counted(taken, 'step')} and the recovery {recovery_steps}, one for each round"
        allowed = f"{steps}: give it as many steps as rounds"
        raise InvalidSetting("control", experiment.control, allowed)
    return continued


def _obtain(experiment: Experiment, store: ArtifactStore, keys: StageKeys, dense: Artifact, loggers: list) -> Artifact:
    kind, cache_key = _kind(experiment), keys.control
    assert cache_key is not None
    while (continued := store.get(kind, cache_key, stage="recover")) is None:
        teacher_key = keys.teacher if experiment.control == DISTILLED else None
        logits = get_or_compute_logits(experiment, store, teacher_key, dense)
        train_arguments = experiment, dense.path, logits, find_unfinished(store, kind, cache_key, dense.path / WEIGHTS)
        with (
            store.making(kind, cache_key) as new,
            other_ranks_running(train, *train_arguments, trainer=experiment.trainer, shared=experiment.cache_dir),
        ):
            new.earlier_seconds = train(*train_arguments, new.folder, loggers)
    if not continued.reused:
        note_work(shared_seconds=continued.seconds)
    return continued


def _kind(experiment: Experiment) -> str:
    """Name of the stage in the store, and of its fields in a result."""
    assert experiment.control is not None  # there is a cache key
    return experiment.control


def control_plan(experiment: Experiment, steps: int) -> TrainingPlan:
    """A single training with as many steps as all rounds of the recovery together.

    Rounds that share a budget become one curve over all of it; rewinding rounds repeat theirs.

    Args:
        steps: per epoch.
    """
    recovery, recipe = experiment.continued_recovery, experiment.recipe
    rounds = experiment.recovery_rounds
    plan = recovery.plan(recipe, steps)
    total = sum(recovery.plan_of_round(recipe, steps, index, rounds).total_steps(steps) for index in range(rounds))
    curve = plan.optimization
    if recovery.repeats and rounds > 1:
        curve = RepeatedCurve(curve.recipe, curve.lr, curve.total_steps, curve.first_step, plan.total_steps(steps))
    elif rounds > 1:
        curve = replace(curve, total_steps=total)  # exceeds the budget if it has fewer steps than rounds
    return TrainingPlan(math.ceil(total / steps), curve, plan.lr_key, total)


def train(
    experiment: Experiment, dense: Path, logits: Path | None, resume_dir: Path, folder: Path, loggers: list
) -> float:
    """The body that every process of the training runs.

    Args:
        dense: folder of the dense network's stage.
        logits: file of the teacher's logits; None = the teacher runs in each step, or there is none.
        resume_dir: for state that survives a killed run, which resumes from it.
        folder: where the stage's files go.
    Returns:
        the seconds that a killed run spent before the point from which this one resumed.
    """
    net = load_net(experiment, dense / WEIGHTS)
    data = open_taught(experiment, logits, seed=recovery_stage_seed(experiment, "recover 0, order"))
    plan = control_plan(experiment, steps_per_epoch(data, experiment.trainer))
    reseed(recovery_stage_seed(experiment, "recover 0"))
    teacher, recovery = (), experiment.continued_recovery
    if experiment.control == DISTILLED:
        teacher = (recovery.make_teaching(partial(load_net, experiment, dense / WEIGHTS), experiment.recovery_setup()),)
    log.info("control=%s: training the dense network on for %s", experiment.control, counted(plan.steps, "step"))
    trained = fit(
        make_task(experiment, net, plan.optimization),
        data,
        epochs=plan.epochs,
        steps=plan.steps,
        recipe=experiment.recipe,
        trainer=experiment.trainer,
        loggers=loggers,
        directory=folder,
        callbacks=teacher,
        resume_dir=resume_dir,
        stage="recover, control",
        lr_key=plan.lr_key,
        phase="continued",
    )
    save_weights(net, folder / WEIGHTS)
    (folder / "training.json").write_text(json.dumps(asdict(trained)), encoding="utf-8")
    return trained.earlier_seconds


def measure(
    experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any] | None, continued: Artifact | None
) -> tuple[dict[str, Any], dict[str, Outcomes]]:
    """Evaluate the control once for all points of a sweep; empty if there is none.

    Returns:
        result field -> value, and its outcomes by name.
    """
    if continued is None or cache_key is None:
        return {}, {}
    kind = _kind(experiment)
    while (stored := store.get("dense_quality", cache_key, stage="measure")) is None:
        with store.making("dense_quality", cache_key) as new:
            fields, outcomes = evaluate(experiment, load_net(experiment, continued.path / WEIGHTS))
            save_outcomes(new.folder / OUTCOMES, outcomes)
            (new.folder / "quality.json").write_text(json.dumps(fields), encoding="utf-8")
    fields = stored.read_json("quality.json") | {f"{kind}_seconds": continued.seconds}
    return fields, load_outcomes(stored.path / OUTCOMES)


def evaluate(experiment: Experiment, net: nn.Module) -> tuple[dict[str, Any], dict[str, Outcomes]]:
    """Evaluate the control.

    Returns:
        result field -> value, and its outcomes by name.
    """
    kind = _kind(experiment)
    fields: dict[str, Any] = {f"{kind}_weights_sha256": weights_digest(net)}
    bench = EvalContext.of(experiment, net)
    log.info("measure: accuracy of the dense network that was trained on")
    quality = evaluate_splits(bench, bench.ready(net), "dense, trained on")
    for prefix, one in (("", quality.test), ("val_", quality.val)):
        if one is not None:
            fields[f"{prefix}{kind}"] = one.metrics[bench.task.metric_name]
            fields[f"{prefix}{kind}_standard_error"] = one.standard_errors[bench.task.metric_name]
    return fields, {kind: quality.test.outcomes}
