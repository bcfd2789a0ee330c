"""Run the stages of one configuration in order."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from sparsefront.artifacts.content_digest import IN_CACHE, remembering
from sparsefront.artifacts.store import ArtifactStore, remove_leftovers
from sparsefront.cache.inventory import remember_results
from sparsefront.config.experiment import Experiment
from sparsefront.config.sweeps import note_work
from sparsefront.config.validate import require_found, validate
from sparsefront.processes import freeze_imports, gc_disabled
from sparsefront.progress import bars_on_terminals
from sparsefront.provenance import code_commit
from sparsefront.results.record import Result
from sparsefront.results.run_folder import close_killed_runs
from sparsefront.training.machines import leading, this_machine

if TYPE_CHECKING:
    from sparsefront.stages.keys import StageKeys


def run_experiment(config: DictConfig) -> float | tuple[float, ...] | None:
    """Run the stages of one configuration that are not finished yet.

    Args:
        config: composed by Hydra.
    Returns:
        the result's values named by `optimize`: one number, or a tuple for a multi-objective sweeper; None if `stages` ends
        before the report, and on a machine that only lends its ranks.
    Raises:
        InvalidSetting: the configuration cannot work; raised before anything is downloaded or trained.
    """
    with bars_on_terminals(OmegaConf.select(config, "trainer.progress_bar") is True):
        with gc_disabled():  # imports leave much that stays and no garbage
            with remembering(Path(config.cache_dir) / IN_CACHE):
                experiment = validate(config)
            # imported here: the stages import Lightning, which takes seconds that a wrong setting does not wait for
            from sparsefront.stages import report
            from sparsefront.stages.keys import stage_keys
            from sparsefront.training.ranks import lend_ranks

            freeze_imports()
        machine = this_machine(experiment.trainer)
        if machine is not None and machine.index > 0:
            lend_ranks(machine, experiment.cache_dir)
            return None
        with leading(machine, experiment.cache_dir):
            remove_leftovers(experiment.cache_dir)
            close_killed_runs(experiment.results_dir)
            remember_results(experiment.cache_dir, experiment.results_dir)
            with ArtifactStore(experiment.cache_dir, runnable=experiment.stages, reuse=experiment.reuse) as store:
                keys = stage_keys(experiment)
                result = report.show_again(experiment, store, keys) or _run_stages(experiment, store, keys)
    if result is None:
        return None
    require_found(result, experiment.optimize)
    values = tuple(result.value_of(name) for name in experiment.optimize)
    return values[0] if len(values) == 1 else values


def _run_stages(experiment: Experiment, store: ArtifactStore, keys: "StageKeys") -> Result | None:
    """Run each stage up to the last requested one; None if that is not the report."""
    from sparsefront.stages import control, dense, export, measure, prune, recover, report
    from sparsefront.stages.latency_search import make_search
    from sparsefront.stages.predicted_latency import warn_where_nothing_wins

    note_work()
    warn_where_nothing_wins(experiment)
    code_commit()  # cached now, since another commit may be checked out during training
    pruned = recovered = exported = continued = None
    with report.open_loggers(experiment, keys) as loggers:
        trained = dense.run(experiment, store, keys.dense, loggers)
        recover_smaller = partial(recover.run_smaller, experiment, store, keys, trained, loggers)
        if experiment.continues_to("prune"):
            pruned = prune.run(experiment, store, keys, trained, make_search, recover_smaller)
        if experiment.continues_to("recover"):
            # Of the points that share the control, one trains it first while the others recover; they find it finished.
            control.begin(experiment, store, keys, trained, loggers)
            recovered = recover.run(experiment.own_recovery, store, keys, trained, pruned, loggers)
            continued = control.run(experiment, store, keys, trained, recovered, loggers)
        if experiment.continues_to("export"):
            exported = export.run(experiment, store, keys.export, pruned, recovered)
        if experiment.continues_to("measure"):
            measured = measure.run(experiment, store, keys, trained, recovered, exported)
            control_quality = control.measure(experiment, store, keys.control_quality, continued)
        if experiment.continues_to("report"):
            return report.run(
                experiment, store, keys, trained, pruned, recovered, exported, measured, control_quality, loggers
            )
        report.leave_out(experiment, exported, loggers)
    return None
