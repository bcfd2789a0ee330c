"""The stages of one run in order, from a configuration to its result."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from omegaconf import DictConfig

from sparsefront.artifacts.content_digest import digest
from sparsefront.artifacts.store import Artifact, ArtifactStore, remove_leftovers
from sparsefront.cache.inventory import remember_results
from sparsefront.config.experiment import Experiment
from sparsefront.config.sweeps import note_work
from sparsefront.config.validate import require_found, validate
from sparsefront.inference.fusion.block_pass import fused_dense_graph
from sparsefront.progress import bars_as_configured
from sparsefront.provenance import code_commit
from sparsefront.results.loggers import close_loggers, log_result
from sparsefront.results.record import Result
from sparsefront.results.run_folder import close_killed_runs, link_checkpoint
from sparsefront.stages import control, dense, export, measure, prune, recover, report
from sparsefront.stages.keys import StageKeys, stage_keys
from sparsefront.stages.latency_search import make_search
from sparsefront.stages.predicted_latency import warn_where_nothing_wins
from sparsefront.training.machines import leading, this_machine
from sparsefront.training.ranks import lend_ranks

log = logging.getLogger(__name__)


@bars_as_configured
def run_experiment(config: DictConfig) -> float | tuple[float, ...] | None:
    """Run the stages of one configuration that are not finished yet.

    Args:
        config: composed by Hydra.
    Returns:
        the result's values named by `optimize`: one number, or a tuple for a multi-objective sweeper; None where `stages` ends
        before the report, and on a machine that trains for another one.
    Raises:
        InvalidSetting: before anything is downloaded or trained, wherever the configuration cannot work.
    """
    experiment = validate(config)
    machine = this_machine(experiment.trainer)
    if machine is not None and machine.index > 0:
        lend_ranks(machine, experiment.cache_dir)
        return None
    with leading(machine, experiment.cache_dir):
        return _run(experiment)


def _run(experiment: Experiment) -> float | tuple[float, ...] | None:
    remove_leftovers(experiment.cache_dir)
    close_killed_runs(experiment.results_dir)
    remember_results(experiment.cache_dir, experiment.results_dir)
    with ArtifactStore(experiment.cache_dir, runnable=experiment.stages, reuse=experiment.reuse) as store:
        result = _find_or_make_result(experiment, store, stage_keys(experiment))
    if result is not None:
        require_found(result, experiment.optimize)
    values = None if result is None else tuple(result.value_of(name) for name in experiment.optimize)
    return values[0] if values is not None and len(values) == 1 else values


def _find_or_make_result(experiment: Experiment, store: ArtifactStore, keys: StageKeys) -> Result | None:
    # reuse=false repeats what `stages` asks for, also where the report, which it may leave out, was finished before.
    finished = store.find("result", keys.result, stage="report") if experiment.reuse else None
    if finished is not None:
        log.info("finished before, nothing is repeated (reuse=false repeats the stages): %s", finished.path)
        return _show_again(experiment, store, keys, finished)
    note_work()
    warn_where_nothing_wins(experiment)
    return _make_result(experiment, store, keys)


def _show_again(experiment: Experiment, store: ArtifactStore, keys: StageKeys, finished: Artifact) -> Result:
    pruned = recovered = None
    if experiment.report.mask_pictures:
        pruned, recovered = store.find("prune", keys.prune), store.find("recover", keys.recover)
    result = report.publish(experiment, finished, pruned=pruned, recovered=recovered)
    with _open_loggers(experiment, keys) as loggers:
        log_result(loggers, result, again=True)
    return result


def _make_result(experiment: Experiment, store: ArtifactStore, keys: StageKeys) -> Result | None:
    code_commit()  # now: what is checked out while this trains is not what runs
    with _open_loggers(experiment, keys) as loggers:
        result = _run_stages(experiment, store, keys, loggers)
    if result is None:
        close_loggers(loggers)
        log.info("ended after stage %s, as stages asks: there is no result", experiment.stages[-1])
    return result


@contextmanager
def _open_loggers(experiment: Experiment, keys: StageKeys) -> Iterator[list]:
    """The loggers of this run, under the id that its result has; closed as failed where it fails."""
    loggers = experiment.logger.build(
        run_name=experiment.name,
        output_dir=experiment.output_dir,
        group=experiment.sweep,
        config=experiment.settings | {"sparsity": experiment.sparsity, "seed": experiment.seed},
        run_id=digest(keys.measure),
    )
    try:
        yield loggers
    except BaseException:
        close_loggers(loggers, failed=True)
        raise


def _run_stages(experiment: Experiment, store: ArtifactStore, keys: StageKeys, loggers: list) -> Result | None:
    """Each stage in turn, up to the last one that is asked for."""
    trained = dense.run(experiment, store, keys.dense, loggers)
    if not trained.reused:
        note_work(shared_seconds=trained.seconds)
    pruned = recovered = exported = continued = None
    if experiment.pattern.prunes:
        if experiment.goes_on_to("prune"):
            search = None
            if keys.choice_times is not None and keys.choice_table is not None:
                search = partial(make_search, experiment, store, keys.choice_times, keys.choice_table)
            pruned = prune.run(experiment, store, keys.prune, trained, search)
        if experiment.goes_on_to("recover"):
            # One of the points that share the control trains it first; the others recover meanwhile and find it finished.
            continued = _train_control(experiment, store, keys, trained, loggers, wait=False)
            recovered = recover.run(experiment, store, keys.recover, trained, pruned, loggers)
            continued = continued or _train_control(experiment, store, keys, trained, loggers, wait=True)
            if continued is not None:
                control.require_same_steps(continued, recovered)
        if experiment.goes_on_to("export"):
            exported = export.run(experiment, store, keys.export, pruned, recovered)
    if not experiment.goes_on_to("measure"):
        if exported is not None:
            log.info("exported checkpoint: %s", link_checkpoint(exported.path, experiment.output_dir))
        return None
    measured = measure.run(
        experiment, store, keys, dense=trained, recovered=recovered, exported=exported, fuse=fused_dense_graph
    )
    continued_quality = {}
    if continued is not None:
        continued_quality = control.measure(experiment, store, keys.control_quality, continued)
    if not experiment.goes_on_to("report"):
        return None
    return report.run(
        experiment,
        store,
        keys,
        dense=trained,
        pruned=pruned,
        recovered=recovered,
        exported=exported,
        measured=measured,
        continued=continued_quality,
        loggers=loggers,
    )


def _train_control(
    experiment: Experiment, store: ArtifactStore, keys: StageKeys, trained: Artifact, loggers: list, *, wait: bool
) -> Artifact | None:
    """The dense network trained on, where the run asks for this control; see `control.run`."""
    if keys.control is None:
        return None
    continued = control.run(experiment, store, keys.control, trained, loggers, wait=wait)
    if continued is not None and not continued.reused:
        note_work(shared_seconds=continued.seconds)
    return continued
