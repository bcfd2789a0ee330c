"""Stage recover: prune and recover the network round by round."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from safetensors.torch import load_file

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.gpu import EnergyMeter, share_gpu
from sparsefront.networks import load_state
from sparsefront.patterns.base import modules_of
from sparsefront.pruning.mask_spec import MASKS, MaskSpec, load_masks, save_masks
from sparsefront.pruning.masks import Masks
from sparsefront.recovery.base import StateDict
from sparsefront.recovery.recover import recover
from sparsefront.recovery.rounds import RunContext
from sparsefront.stages.keys import StageKeys, recovery_stage_seed, reseed
from sparsefront.stages.network import build_net, device_of, find_unfinished, load_net, make_task, open_data
from sparsefront.stages.teacher import get_or_compute_logits, open_taught
from sparsefront.training.compilation import deterministic_algorithms
from sparsefront.training.ranks import other_ranks_running
from sparsefront.training.resume import EPOCH_WEIGHTS, WEIGHTS, epoch_weights_file, save_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredEpochWeights(Mapping[int, StateDict]):
    """Epoch of the dense run -> the weights at its start, read on access.

    Args:
        folder: of stage dense.
    """

    folder: Path

    def __getitem__(self, epoch: int) -> StateDict:
        return load_file(epoch_weights_file(self.folder, epoch))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(list((self.folder / EPOCH_WEIGHTS).iterdir()))


def load_masks_of(experiment: Experiment, pruned: Path, folder: Path) -> Masks:
    """Load masks in the form that the library uses.

    Args:
        pruned: folder of stage prune, which fixed the mask spec.
        folder: of the stage whose masks are read.
    """
    masks, spec = load_masks(folder / MASKS), MaskSpec.load(pruned, trust=modules_of(experiment.pattern))
    lifted = experiment.leaves_dense and folder != pruned
    return Masks(
        masks,
        pruning=experiment.pruning,
        spec=spec.of_dense(masks) if lifted else spec,
        ignored=json.loads((pruned / "plan.json").read_text(encoding="utf-8"))["dense_layers"],
    )


def run(
    experiment: Experiment, store: ArtifactStore, keys: StageKeys, dense: Artifact, pruned: Artifact, loggers: list
) -> Artifact:
    """Write weights.safetensors (zeros where pruned), masks.safetensors, training.json (a record of every round, the
    smaller network's own before them)."""
    while (recovered := store.get("recover", keys.recover)) is None:
        files = [file for file in (pruned.path / MASKS, pruned.path / WEIGHTS) if file.is_file()]
        resume_dir = find_unfinished(store, "recover", keys.recover, dense.path / WEIGHTS, *files)
        logits = get_or_compute_logits(experiment, store, keys.teacher, dense)
        train_arguments = experiment, dense.path, pruned.path, logits, resume_dir
        with (
            store.making("recover", keys.recover) as new,
            other_ranks_running(train, *train_arguments, trainer=experiment.trainer, shared=experiment.cache_dir),
        ):
            new.earlier_seconds = train(*train_arguments, new.folder, loggers)
    return recovered


def run_smaller(
    experiment: Experiment, store: ArtifactStore, keys: StageKeys, dense: Artifact, loggers: list, pruned: Artifact
) -> Artifact | None:
    """Recover the smaller network for its share of the steps (`structured.recovery_share`); None if it has none.

    Args:
        pruned: the stage prune that made it.
    """
    first = experiment.smaller_recovery
    if first is None or keys.smaller is None:
        return None
    return run(first, store, replace(keys, recover=keys.smaller), dense, pruned, loggers)


def train(
    experiment: Experiment,
    dense: Path,
    pruned: Path,
    logits: Path | None,
    resume_dir: Path,
    folder: Path,
    loggers: list,
) -> float:
    """The body that every process of the training runs.

    Args:
        dense, pruned: folders of the stages that this one starts from.
        logits: file of the teacher's logits; None = the teacher runs in each step.
        resume_dir: for state that survives a killed run, which resumes from it.
        folder: where the stage's files go.
    Returns:
        the seconds that killed runs spent before the point from which this one resumed, and those of the smaller network's own
            recovery.
    """
    net, device = load_net(experiment, dense / WEIGHTS), device_of(experiment)
    first = load_masks_of(experiment, pruned, pruned)
    first.spec.shrink(net)
    before: dict[str, Any] = {"rounds": [], "joules": 0.0, "no_joules": None}
    if (pruned / WEIGHTS).is_file():  # recovered before `pattern` pruned it
        load_state(net, load_file(pruned / WEIGHTS))
        before = json.loads((pruned / "training.json").read_text(encoding="utf-8"))
    past = len(before["rounds"])
    with share_gpu(device), EnergyMeter(device) as energy, deterministic_algorithms(experiment.trainer.deterministic):
        masks = recover(
            net,
            first,
            lambda index: _data_of_round(experiment, logits, past + index),
            recovery=experiment.recovery,
            recipe=experiment.recipe,
            trainer=experiment.trainer,
            dense_net=partial(load_net, experiment, dense / WEIGHTS),
            initial_net=partial(build_net, experiment),
            epoch_weights=StoredEpochWeights(dense) if experiment.recipe.save_epoch_weights else None,
            prunable=experiment.model.prunable,
            task=partial(make_task, experiment),
            context=RunContext(
                folder,
                resume_dir,
                loggers,
                scoring_loader=(lambda index: _open_labeled(experiment, past + index))
                if experiment.unlabeled
                else None,
                begin_round=lambda index: reseed(recovery_stage_seed(experiment, f"recover {past + index}")),
                keep_finished=True,  # removed by the store once the stage is complete
            ),
        )
    save_masks(masks, folder / MASKS)
    save_weights(net, folder / WEIGHTS)
    resumed_seconds = sum(record.earlier_seconds for record in masks.rounds)
    training = energy.fields(resumed=resumed_seconds > 0)
    training["no_joules"] = training["no_joules"] or before["no_joules"]
    training["joules"] = None if training["no_joules"] else training["joules"] + before["joules"]
    rounds = [*before["rounds"], *(asdict(record) for record in masks.rounds)]
    training |= {"seconds": sum(record["seconds"] for record in rounds), "rounds": rounds}
    (folder / "training.json").write_text(json.dumps(training), encoding="utf-8")
    return resumed_seconds + sum(record["seconds"] for record in before["rounds"])


def _data_of_round(experiment: Experiment, logits: Path | None, index: int) -> pl.LightningDataModule:
    """A round's data, with an order and augmentations that depend only on the seeds, so that a resumed round sees the same."""
    return open_taught(experiment, logits, seed=recovery_stage_seed(experiment, f"recover {index}, order"))


def _open_labeled(experiment: Experiment, index: int) -> Callable[[], Iterable]:
    """Opens a round's labeled rows: scores follow from their loss, as in stage prune."""
    loader: Callable[[], Iterable] = open_data(
        experiment, seed=recovery_stage_seed(experiment, f"recover {index}, order")
    ).train_dataloader
    return loader
