"""Stage report: combine measurements and provenance into one result: on disk, in the store, in W&B, on the terminal."""

import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

from hydra.core.hydra_config import HydraConfig

from sparsefront.artifacts.content_digest import digest, file_digest
from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import require_all
from sparsefront.artifacts.store import Artifact, ArtifactStore, newest
from sparsefront.config.experiment import Experiment
from sparsefront.errors import Obstacle, printable
from sparsefront.patterns.base import modules_of
from sparsefront.patterns.blocks import windows_text
from sparsefront.pruning.collapse import collapse_warning, select_collapsed
from sparsefront.pruning.mask_spec import MASKS, MaskSpec, load_masks, mask_shapes
from sparsefront.recovery.training import TrainingRecovery
from sparsefront.results.loggers import LoggedRun, close_loggers, log_result
from sparsefront.results.mask_pictures import PrunedLayers
from sparsefront.results.packed import SERVING
from sparsefront.results.record import (
    Choice,
    Cost,
    Identity,
    Kernels,
    Quality,
    Result,
    Size,
    Sparsity,
    Speed,
    record_digest,
)
from sparsefront.results.run_folder import link_checkpoint
from sparsefront.results.run_report import PAGE_FILE, PLOT_FILE, write_report
from sparsefront.results.store import RESULT_FILE, STORE_FILE, append_result, write_result_json
from sparsefront.results.tables import print_run
from sparsefront.settings_class import without_later
from sparsefront.stages.bench import OUTCOMES, TEXTS
from sparsefront.stages.keys import StageKeys, dense_recipe
from sparsefront.stages.measure import MEASUREMENTS, SAMPLES
from sparsefront.stages.network import open_data
from sparsefront.stages.prune import PLAN, load_search
from sparsefront.tasks.outcomes import Outcomes, load_outcomes, save_outcomes
from sparsefront.training.fit import steps_per_epoch

log = logging.getLogger(__name__)
TAG_GROUPS = ("model", "dataset", "pattern", "recovery")  # groups whose choices become W&B tags
CHOICE_GROUPS = (*TAG_GROUPS, "importance", "allocation", "schedule", "kernel")


@contextmanager
def open_loggers(experiment: Experiment, keys: StageKeys) -> Iterator[list]:
    """The loggers of this run, with the id of its result; marked as failed if the run fails."""
    low = [experiment.precision.mode] if experiment.precision.is_low else []
    groups = [group for group in CHOICE_GROUPS if experiment.pattern.prunes or group in ("model", "dataset", "pattern")]
    choices = {group: experiment.choices[group] for group in groups}
    tags = [choices[group] for group in TAG_GROUPS if group in choices]
    choices |= {"granularity": getattr(experiment.pattern, "granularity", None), "precision": experiment.precision.mode}
    run = LoggedRun(
        run_name=f"{experiment.name}-seed{experiment.seed}",
        output_dir=experiment.output_dir,
        group=experiment.sweep or experiment.name,
        # plain values, by which W&B groups and filters
        config=choices | {name: getattr(experiment, name) for name in ("sparsity", "seed", "settings")},
        run_id=digest(keys.measure),
        tags=tags + low + ["debug"] * bool(HydraConfig.get().runtime.choices.get("debug")),
    )
    loggers = experiment.logger.build(run)
    try:
        yield loggers
    except BaseException:
        close_loggers(loggers, failed=True)
        raise


def run(
    experiment: Experiment,
    store: ArtifactStore,
    keys: StageKeys,
    dense: Artifact,
    pruned: Artifact | None,
    recovered: Artifact | None,
    exported: Artifact | None,
    measured: Artifact,
    control: tuple[dict[str, Any], dict[str, Outcomes]],
    loggers: list,
) -> Result:
    """Build, store and publish the result of a run, measured just now or before a kill.

    Args:
        control: fields and outcomes that it adds; empty if there is none.
    """
    while (finished := store.get("result", keys.result, stage="report")) is None:
        with store.making("result", keys.result) as new:
            result = _compose(experiment, dense, pruned, recovered, exported, measured).with_values(control[0])
            for file in (measured.path / SAMPLES, *measured.path.glob(TEXTS)):
                shutil.copy(file, new.folder / file.name)
            served = measured.read_json(MEASUREMENTS).get("serving")
            if served is not None:
                (new.folder / SERVING).write_text(json.dumps(served, indent=2), encoding="utf-8")
            save_outcomes(new.folder / OUTCOMES, load_outcomes(measured.path / OUTCOMES) | control[1])
            write_result_json(new.folder / RESULT_FILE, _seal(result, new.folder))
    result = _publish(experiment, finished, pruned, recovered)
    log_result(loggers, result, files=[experiment.output_dir / name for name in (PLOT_FILE, PAGE_FILE)])
    return result


def show_again(experiment: Experiment, store: ArtifactStore, keys: StageKeys) -> Result | None:
    """Publish the stored result of an earlier run of this experiment; None if there is none, or it is to be redone."""
    # reuse=false repeats the selected stages, even if the report, which may not be among them, was finished before.
    finished = store.find("result", keys.result, stage="report") if experiment.reuse else None
    if finished is None:
        return None
    log.info("finished before, nothing is repeated (reuse=false repeats the stages): %s", finished.path)
    pruned = recovered = None
    if experiment.report.mask_pictures:
        pruned, recovered = store.find("prune", keys.prune), store.find("recover", keys.recover)
    result = _publish(experiment, finished, pruned, recovered)
    with open_loggers(experiment, keys) as loggers:
        log_result(loggers, result, again=True)
    return result


def leave_out(experiment: Experiment, exported: Artifact | None, loggers: list) -> None:
    """End a run whose `stages` stop before the report."""
    if exported is not None and not experiment.continues_to("measure"):
        log.info("exported checkpoint: %s", link_checkpoint(exported.path, experiment.output_dir))
    close_loggers(loggers)
    log.info("ended after stage %s, as stages asks: there is no result", experiment.stages[-1])


def _seal(result: Result, folder: Path) -> Result:
    """Add digests of the result's files and, last, of the result itself."""
    files = {"samples_sha256": file_digest(folder / SAMPLES), "outcomes_sha256": file_digest(folder / OUTCOMES)}
    result = result.with_values(files)
    return result.with_values({"record_sha256": record_digest(json.loads(result.to_json()))})


def _publish(experiment: Experiment, finished: Artifact, pruned: Artifact | None, recovered: Artifact | None) -> Result:
    """Write a finished result to the run's folder, the common store and the terminal.

    Args:
        pruned, recovered: only for mask pictures; None if they are gone, or nothing was pruned.
    """
    result = Result.from_json((finished.path / RESULT_FILE).read_text(encoding="utf-8"))
    directory = experiment.output_dir
    require_all()  # after a suspend, a restarted run may own the folder now
    beside = (*finished.path.glob(TEXTS), *finished.path.glob(SERVING))
    for file in (finished.path / SAMPLES, finished.path / OUTCOMES, *beside):
        with whole_file(directory / file.name) as copy:
            shutil.copyfile(file, copy)
    masks = _load_layers(experiment, result, pruned, recovered) if experiment.report.mask_pictures else None
    files = write_report(result, directory, experiment.report, masks)
    checkpoint = None
    if result.identity.checkpoint is not None:
        folder = experiment.cache_dir / result.identity.checkpoint
        checkpoint = link_checkpoint(newest(folder) or folder, directory)
    files = [write_result_json(directory / RESULT_FILE, result), *files]  # last: a folder with a result is complete
    files += [file for file in [directory / SERVING] if file.is_file()]
    files += _add_to_store(experiment.results_dir / STORE_FILE, result)
    print_run(result, files, checkpoint=checkpoint, is_point=experiment.sweep is not None)
    sparsity = result.sparsity
    warning = collapse_warning(sparsity.sparsity_per_layer, sparsity.sparsity_target, experiment.allocation.name)
    if warning is not None and not experiment.pattern.takes_blocks:
        log.warning("%s", warning)
    return result


def _add_to_store(store: Path, result: Result) -> list[Path]:
    """Append the result to the store and return it; on failure warn only, because the result has its own file already."""
    try:
        append_result(store, result)
    except (Obstacle, OSError) as error:
        log.warning("%s", printable(f"not added to {store}: {error}"))
        return []
    return [store]


def _load_layers(
    experiment: Experiment, result: Result, pruned: Artifact | None, recovered: Artifact | None
) -> PrunedLayers | None:
    """The final masks (or, if they were lifted, the last ones) in the network's order; None, with a log line, if their stages are
    gone.
    """
    if not experiment.pattern.prunes:
        return None
    if pruned is None or recovered is None:
        log.info("no pictures: the masks of this run are not stored any more (reuse=false makes them again)")
        return None
    masks = load_masks((pruned if experiment.leaves_dense else recovered).path / MASKS)
    settings = [f"{key}={value}" for key, value in result.choice.pattern_parameters.items() if value is not None]
    return PrunedLayers(
        masks={layer: masks[layer] for layer in result.sparsity.sparsity_per_layer if layer in masks},
        pattern=experiment.pattern,
        pattern_text=" ".join([result.choice.pattern, *settings]),
        sparsity=experiment.sparsity,
        spec=MaskSpec.load(pruned.path, trust=modules_of(experiment.pattern)),
    )


def _compose(
    experiment: Experiment,
    dense: Artifact,
    pruned: Artifact | None,
    recovered: Artifact | None,
    exported: Artifact | None,
    measured: Artifact,
) -> Result:
    return compose_result(
        experiment,
        measured.read_json(MEASUREMENTS),
        run_id=measured.key,
        checkpoint=None if exported is None else f"export/{exported.key}",
        n_of_m=_n_of_m(experiment, pruned, recovered),
        searched=load_search(pruned) or {},
        cost=Cost(
            train_dense_seconds=dense.seconds,
            prune_seconds=None if pruned is None else pruned.seconds,
            recover_seconds=None if recovered is None else recovered.seconds,
            measure_seconds=measured.seconds,
            **_budgets(dense, recovered),
            **({} if recovered is None else _throughput(recovered)),
            **_energy(dense, pruned, recovered),
            **measured.read_json(MEASUREMENTS)["cost"],
            dense_reused=dense.reused,
        ),
    )


def compose_result(
    experiment: Experiment,
    found: dict[str, Any],
    *,
    run_id: str,
    checkpoint: str | None,
    n_of_m: str | None,
    searched: dict[str, Any],
    cost: Cost,
) -> Result:
    """The result of an experiment, without its files' digests and its control.

    Args:
        found: the measurements, by group.
        n_of_m: windows of a balanced pattern.
        searched: result of a latency search; empty if there was none.
    """
    return Result(
        identity=Identity(
            run_id=run_id,
            config_hash=experiment.config_hash,
            seed=experiment.seed,
            recovery_seed=experiment.recovery_seed if experiment.pattern.prunes else None,
            checkpoint=checkpoint,
            plan_sha256=None if experiment.report.plan is None else file_digest(Path(experiment.report.plan)),
            **found["identity"],
        ),
        choice=choice_of(experiment, found["network"]),
        sparsity=Sparsity(
            sparsity_target=experiment.sparsity,
            n_of_m=n_of_m,
            pattern_per_layer={layer: choice["pattern"] for layer, choice in searched.get("layers", {}).items()},
            collapsed_layers={}
            if experiment.pattern.takes_blocks
            else select_collapsed(found["sparsity"]["sparsity_per_layer"], experiment.sparsity),
            **found["sparsity"],
        ),
        quality=Quality(outcomes_file=OUTCOMES, val_seen=experiment.val_seen, **found["quality"]),
        speed=Speed(samples_file=SAMPLES, latency_predicted_ms=searched.get("latency_predicted_ms"), **found["speed"]),
        size=Size(**found["size"]),
        kernels=Kernels(**found["kernels"]),
        cost=cost,
    )


def _budgets(dense: Artifact, recovered: Artifact | None) -> dict[str, Any]:
    """What was trained, as counted by the training loops, over all rounds of a recovery."""
    trained = dense.read_json("training.json")
    budgets = {f"dense_{what}": trained[what] for what in ("steps", "samples")}
    if recovered is not None:
        rounds = recovered.read_json("training.json")["rounds"]
        totals = {what: sum(record[what] for record in rounds) for what in ("steps", "epochs", "samples")}
        budgets |= {f"recovery_{what}": total for what, total in totals.items()}
        if rounds and rounds[0]["unlabeled"] is not None:
            budgets["recovery_unlabeled_samples"] = sum(record["unlabeled"] for record in rounds)
        budgets["recovery_epochs"] = round(budgets["recovery_epochs"], 6)  # fractional if rounds end within an epoch
    return budgets


def _throughput(recovered: Artifact) -> dict[str, float]:
    """Samples per second of the recovery's training, and the share of it in which the GPU was busy, where they were measured."""
    rounds = recovered.read_json("training.json")["rounds"]
    samples, seconds = (sum(record[name] for record in rounds) for name in ("samples", "seconds"))
    fields = {"recovery_samples_per_s": samples / seconds} if samples and seconds else {}
    busy = [(record["gpu_busy_share"], record["seconds"]) for record in rounds if record["gpu_busy_share"] is not None]
    if busy:
        whole = sum(of_round for _, of_round in busy)
        fields["recovery_gpu_busy_share"] = sum(share * of_round for share, of_round in busy) / whole
    return fields


def _energy(dense: Artifact, pruned: Artifact | None, recovered: Artifact | None) -> dict[str, Any]:
    """Joules of the stages that train and prune, and the first reason why one has none; a stage may be older than its meter."""
    stages = {"train_dense": (dense, "training.json"), "prune": (pruned, PLAN), "recover": (recovered, "training.json")}
    known = {stage: made.read_json(file) for stage, (made, file) in stages.items() if made is not None}
    reasons = [f"{stage}: {one['no_joules']}" for stage, one in known.items() if one.get("no_joules")]
    return {f"{stage}_joules": one.get("joules") for stage, one in known.items()} | {
        "no_joules": next(iter(reasons), None)
    }


def plan_budgets(experiment: Experiment) -> dict[str, float | None]:
    """The fields of `_budgets` as planned for this data; None: not known before."""
    data = open_data(experiment)
    steps, epochs = steps_per_epoch(data, experiment.trainer), experiment.recipe.epochs
    per_epoch = _samples_per_epoch(experiment, data)
    plan: dict[str, float | None] = {
        "dense_steps": epochs * steps,
        "dense_samples": None if per_epoch is None else epochs * per_epoch,
    }
    if experiment.pattern.prunes:
        if experiment.unlabeled:
            data = open_data(experiment, unlabeled=True)
            steps, per_epoch = steps_per_epoch(data, experiment.trainer), _samples_per_epoch(experiment, data)
        taken = [
            part.recovery.training.plan_of_round(part.recipe, steps, index, part.recovery_rounds).total_steps(steps)
            for part in (experiment.smaller_recovery, experiment.own_recovery)
            if part is not None and isinstance(part.recovery.training, TrainingRecovery)
            for index in range(part.recovery_rounds)
        ]
        parts = [divmod(one, steps) for one in taken]  # a round may end within an epoch, before its last, smaller batch
        within, size = any(rest for _, rest in parts), experiment.recipe.batch_size
        epochs_known = not within or experiment.trainer.accumulate_grad_batches == 1
        plan |= {
            "recovery_steps": sum(taken),
            "recovery_epochs": round(sum(taken) / steps, 6) if epochs_known else None,
        }
        known = epochs_known and per_epoch is not None and not (within and _batches_vary(experiment))
        plan["recovery_samples"] = sum(whole * per_epoch + rest * size for whole, rest in parts) if known else None
        plan |= {"recovery_unlabeled_samples": None} if experiment.unlabeled else {}
    return plan


def _samples_per_epoch(experiment: Experiment, data: Any) -> int | None:
    """Number of samples in all batches of an epoch; None if several processes share them."""
    if experiment.trainer.world_size > 1:
        return None
    loader, limit, size = data.train_dataloader(), experiment.trainer.limit_batches, experiment.recipe.batch_size
    if limit is not None and limit < len(loader):
        return None if _batches_vary(experiment) else limit * size
    rows = len(loader.dataset)
    by_tokens = getattr(experiment.dataset, "batch_tokens", None) is not None
    return rows if by_tokens or len(loader) == math.ceil(rows / size) else len(loader) * size


def _batches_vary(experiment: Experiment) -> bool:
    """Whether other training batches than the last one may have fewer rows."""
    dataset = experiment.dataset
    return getattr(dataset, "batch_tokens", None) is not None or getattr(dataset, "group_by_length", False)


def _n_of_m(experiment: Experiment, pruned: Artifact | None, recovered: Artifact | None) -> str | None:
    """The n:m windows of the pruned layers; None if there are none."""
    if pruned is None or recovered is None:
        return None
    spec = MaskSpec.load(pruned.path, trust=modules_of(experiment.pattern))
    return windows_of(experiment, spec, mask_shapes(recovered.path / MASKS))


def windows_of(experiment: Experiment, spec: MaskSpec, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The n:m windows of pruned layers with these shapes of their weights; None if there are none."""
    own = {layer: (shape, spec.sparsity_of(layer, experiment.sparsity)) for layer, shape in shapes.items()}
    return windows_text(experiment.pattern, own)


def choice_of(experiment: Experiment, network: dict[str, Any]) -> Choice:
    """The choices of an experiment without anything that the result does not depend on.

    A dense run names no pruning settings; without a swap the kernel is `none`.

    Args:
        network: what the loaded network reports about itself.
    """
    choices, pruned = experiment.choices, experiment.pattern.prunes
    parts = ["dataset", "pattern", "recipe"]
    smaller = experiment.shrinking is not None
    if smaller:
        parts.append("structured")
    if pruned:
        parts += ["importance", "allocation", "schedule", "recovery"]
    parameters = {f"{part}_parameters": _parameters(asdict(getattr(experiment, part))) for part in parts}
    if not pruned:
        parameters["recipe_parameters"] = dense_recipe(parameters["recipe_parameters"])
    parameters["model_parameters"] = _parameters(experiment.model.settings_used()) | network
    return Choice(
        model=choices["model"],
        model_variant=experiment.model.variant,
        dataset=choices["dataset"],
        dataset_task=getattr(experiment.dataset, "task", None),
        dataset_split=experiment.dataset.split_version,
        structured=choices["structured"] if smaller else None,
        pattern=experiment.pattern_name,
        granularity=getattr(experiment.pattern, "granularity", None),
        importance=choices["importance"] if pruned else None,
        allocation=experiment.allocation.name if pruned else None,
        schedule=choices["schedule"] if pruned else None,
        recovery=choices["recovery"] if pruned else None,
        recipe=choices.get("recipe"),
        trainer_parameters=experiment.trainer.cache_key(),
        kernel_mode=(choices["kernel"] if experiment.swaps else "none") if pruned else None,
        control=experiment.control,
        **parameters,
    )


def _parameters(settings: dict[str, Any]) -> dict[str, Any]:
    """A part's settings by YAML key; paths are reduced to their last component, because results name no machine."""
    return {
        key: PurePath(value).name if isinstance(value, str) else value for key, value in without_later(settings).items()
    }
