"""Prune and recover a network round by round; a killed recovery resumes after its last finished round."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from safetensors.torch import load_file
from torch import nn

from sparsefront import distributed
from sparsefront.artifacts.content_digest import checksums, digest, find_damage
from sparsefront.artifacts.durable import rename_synced, save_tensors, sync_tree, whole_file
from sparsefront.artifacts.lease import process_tag, require_all
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.networks import first_non_finite, load_state, same_shapes, tensors_digest
from sparsefront.patterns.hidden import ties_of
from sparsefront.progress import working_time
from sparsefront.pruning.make_masks import MaskMaker
from sparsefront.pruning.mask_spec import MASKS, MaskSpec, load_masks, save_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import AccumulateScores
from sparsefront.recovery.base import LayerMasks, Recovery, RecoverySetup, Round, RoundRecord, StateDict
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.training.recipe import Optimization
from sparsefront.training.resume import WEIGHTS, save_weights

# The identity of a recovery: digests of everything that defines it, so that it never resumes from another one's state.

Identity = dict[str, str]
"""Name of what is compared -> its digest."""


def identity_of(
    nets: Mapping[str, nn.Module], masks: LayerMasks, spec: MaskSpec, recovery: Recovery, setup: RecoverySetup
) -> Identity:
    """Digests of the initial weights, masks and settings of a recovery; data and loss are not compared.

    Args:
        nets: name -> network.
        masks: of the first round.
    """
    pruning = setup.pruning
    parts = (pruning.pattern, pruning.importance, pruning.allocation, pruning.schedule)
    return {
        **{name: tensors_digest(net.state_dict()) for name, net in nets.items()},
        "masks": tensors_digest(masks),
        "pruning": digest([pruning.sparsity, _content(spec), *map(_settings, parts)]),
        "recovery": digest([_settings(recovery), recovery.fingerprint()]),
        "recipe": digest(_settings(setup.recipe)),
        "trainer": digest(setup.trainer.cache_key()),
    }


def _content(spec: MaskSpec) -> list[Any]:
    orders = {layer: tensors_digest(order.orders()) for layer, order in spec.permutations.items()}
    patterns = {layer: _settings(pattern) for layer, pattern in (spec.patterns or {}).items()}
    return [orders, spec.sparsities, patterns]


def _settings(part: object) -> list[Any]:
    kind = type(part)
    return [
        f"{kind.__module__}.{kind.__qualname__}",
        dataclasses.asdict(part) if dataclasses.is_dataclass(part) and not isinstance(part, type) else {},
    ]


# What survives a killed recovery: its identity, the result of the last finished round, and the state of the next
# round's training.

log = logging.getLogger(__name__)
RECORDS, SCORES, CHECKSUMS = "rounds.json", "scores.safetensors", "checksums.json"
IDENTITY = "identity.json"


class FinishedRounds:
    """Stores everything that the next round depends on: weights, masks, scores, and the records of finished rounds.

    Args:
        folder: survives a killed run; None = store and restore nothing.
        least_seconds: between stored rounds; rounds since the last stored one are trained again.
        net: the network that the rounds train.
        masked: applies its masks.
        accumulator: the accumulator shared by all rounds, if the importance has one.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        least_seconds: float,
        net: nn.Module,
        masked: MaskedWeights,
        accumulator: AccumulateScores | None,
    ) -> None:
        self.folder, self.least_seconds, self._last_write = folder, least_seconds, working_time()
        self.net, self.masked, self.accumulator = net, masked, accumulator

    def training_of(self, index: int) -> Path | None:
        """Folder for the training state of a round (from 0)."""
        return self.folder and (self.folder / f"round_{index:03d}")

    def begin(self, identity: Identity) -> None:
        """Check, before anything is restored, that the folder's contents belong to this recovery.

        Raises:
            InvalidSetting: they belong to another one; names the differences.
        """
        assert self.folder is not None
        file = self.folder / IDENTITY
        stored_identity = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if stored_identity == identity:
            return
        if self._states():
            differing = [
                name for name in {**identity, **stored_identity} if identity.get(name) != stored_identity.get(name)
            ]
            what = f"what another recovery left there differs in {', '.join(differing)}"
            allowed = f"{what}: repeat that one to go on with it, name another folder, or remove this one to begin anew"
            raise InvalidSetting("context.resume_dir", self.folder, allowed)
        if distributed.rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as new:
                new.write_text(json.dumps(identity), encoding="utf-8")

    def forget(self) -> None:
        """After the last round, on rank 0: remove the stored state; other files stay."""
        if self.folder is None or distributed.rank() != 0:
            return
        for state in self._states():
            shutil.rmtree(state, ignore_errors=True)
        (self.folder / IDENTITY).unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            self.folder.rmdir()

    def _states(self) -> list[Path]:
        """Folders of finished rounds and of the trainings of rounds."""
        assert self.folder is not None
        folder = self.folder
        return sorted(path for kind in ("after_*_rounds", "round_*") for path in folder.glob(kind))

    def restore(self) -> list[RoundRecord]:
        """Load the result of the last finished round into the network.

        Returns:
            the records of all finished rounds, with all of their time counted as earlier; empty, without touching anything, if
            there are none or they are damaged.
        """
        folders = sorted(self.folder.glob("after_*_rounds")) if self.folder else []
        if not folders:
            return []
        last = folders[-1]
        damage = _damage(last, self.net)
        if damage is not None:
            if distributed.rank() == 0:
                log.warning("not used, so the rounds start again: %s: %s", last, damage)
            return []
        load_state(self.net, load_file(last / WEIGHTS))
        self.masked.set(load_masks(last / MASKS))
        if self.accumulator is not None:
            self.accumulator.load_state_dict(load_file(last / SCORES))
        records = [RoundRecord(**record) for record in json.loads((last / RECORDS).read_text(encoding="utf-8"))]
        return [replace(record, earlier_seconds=record.seconds) for record in records]

    def keep(self, records: list[RoundRecord]) -> None:
        """Store the state after a round (except the last), if it is time, atomically, on rank 0; removes all earlier states."""
        if self.folder is None or distributed.rank() != 0:
            return
        if working_time() - self._last_write < self.least_seconds:
            return
        done = self.folder / f"after_{len(records):03d}_rounds"
        require_all()
        new = done.with_suffix(f".new-{process_tag()}")
        new.mkdir(parents=True)
        save_weights(self.net, new / WEIGHTS)
        save_masks(self.masked.masks(), new / MASKS)
        if self.accumulator is not None:
            save_tensors(new / SCORES, self.accumulator.state_dict())
        (new / RECORDS).write_text(json.dumps([asdict(record) for record in records]), encoding="utf-8")
        (new / CHECKSUMS).write_text(json.dumps(checksums(new)), encoding="utf-8")
        sync_tree(new)
        shutil.rmtree(done, ignore_errors=True)  # damaged
        rename_synced(new, done)
        for old in self._states():
            if old != done:
                shutil.rmtree(old, ignore_errors=True)
        self._last_write = working_time()


def _damage(folder: Path, net: nn.Module) -> str | None:
    """Describe which stored file is damaged, and how, or that they are of another network; None if all is well."""
    try:
        [RoundRecord(**record) for record in json.loads((folder / RECORDS).read_text(encoding="utf-8"))]
        damage = find_damage(folder, json.loads((folder / CHECKSUMS).read_text(encoding="utf-8")))
        if damage is None and not same_shapes(load_file(folder / WEIGHTS), net.state_dict()):
            return "it is of another network"
        return damage
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return first_line(error)


@dataclass(frozen=True, eq=False)
class Source:
    """Data, tasks and networks of a recovery.

    Args:
        data_of_round: index of a round, from 0 -> its training data; a round's loader starts from the same order each time.
        make_task, dense_net, initial_net, epoch_weights: see `Round`.
    """

    data_of_round: Callable[[int], pl.LightningDataModule]
    make_task: Callable[[Optimization | None], LightningTask]
    dense_net: Callable[[], nn.Module]
    initial_net: Callable[[], nn.Module]
    epoch_weights: Mapping[int, StateDict]

    @property
    def networks(self) -> dict[str, Callable[[], nn.Module]]:
        """The networks by their names in `Recovery.needs`."""
        return {"dense_net": self.dense_net, "initial_net": self.initial_net}


@dataclass(frozen=True)
class RunContext:
    """Folders, loggers and hooks of a recovery.

    Args:
        folder: exists; the training may write below it.
        resume_dir: survives a killed run: the same recovery resumes from it, a different one raises an error. Empty at the
            end; None = nothing is stored.
        loggers: Lightning loggers of every fit.
        scoring_loader: index of a round -> a function that opens the batches of which scores are made; None = those of training.
        begin_round: called with the index of each round, from 0, before any random draw, to seed it.
        keep_finished: keep `resume_dir` at the end for a caller that removes it after storing the network.
    """

    folder: Path
    resume_dir: Path | None = None
    loggers: list = field(default_factory=list)
    scoring_loader: Callable[[int], Callable[[], Iterable]] | None = None
    begin_round: Callable[[int], object] = lambda index: None
    keep_finished: bool = False


@dataclass(frozen=True)
class Recovered:
    """The result of all rounds.

    Args:
        masks: layer name -> bool, shaped like the weight.
        records: one per round.
    """

    masks: LayerMasks
    records: tuple[RoundRecord, ...]


def run_rounds(
    net: nn.Module,
    masks: LayerMasks,
    spec: MaskSpec,
    recovery: Recovery,
    setup: RecoverySetup,
    source: Source,
    context: RunContext,
) -> Recovered:
    """Run the schedule's rounds on a network, in place.

    Args:
        net: the dense weights, or what `masks` leave of them.
        masks: of the first round, layer name -> bool, [N, K] or shaped like the weight.
        spec: fixed before the first masks.
    Raises:
        InvalidSetting: the recovery leaves layers without masks, returns no record or leaves non-finite weights, or
            `context.resume_dir` holds the state of another recovery.
    """
    pruning, layers = setup.pruning, list(masks)
    ties = ties_of(net, layers, pruning.pattern)
    with MaskedWeights(net, layers, ties) as masked:
        accumulator = AccumulateScores(net, layers, pruning.importance) if pruning.importance.accumulates else None
        task = source.make_task(None)
        levels = pruning.schedule.round_sparsities(pruning.sparsity)
        tightens = bool(pruning.schedule.updates_of(1, pruning.sparsity))
        finished = FinishedRounds(
            context.resume_dir if setup.trainer.checkpoint else None,
            least_seconds=setup.trainer.checkpoint_seconds,
            net=net,
            masked=masked,
            accumulator=accumulator,
        )
        if finished.folder is not None:
            nets = {name: make() for name, make in source.networks.items() if name in recovery.needs}
            finished.begin(identity_of({"net": net, **nets}, masks, spec, recovery, setup))
        records = finished.restore()
        for index in range(len(records), len(levels)):
            context.begin_round(index)
            data = source.data_of_round(index)
            open_loader = data.train_dataloader if context.scoring_loader is None else context.scoring_loader(index)
            make_masks = MaskMaker(pruning, task, layers, spec, open_loader, accumulator, ties)
            if index > 0:
                net.to(torch.device(setup.trainer.device))
                masks = make_masks(levels[index], masked.masks())
            log.info(
                "recover: %s at %.4g, round %d of %d%s",
                recovery.name,
                levels[index],
                index + 1,
                len(levels),
                f"; masks tighten to {pruning.sparsity:.4g} on the way" if tightens else "",
            )
            done = recovery.recover(
                Round(
                    setup=setup,
                    index=index,
                    sparsity=levels[index],
                    net=net,
                    masks=masks,
                    masked=masked,
                    spec=spec,
                    data=data,
                    make_masks=make_masks,
                    make_task=source.make_task,
                    initial_net=source.initial_net,
                    dense_net=source.dense_net,
                    epoch_weights=source.epoch_weights,
                    folder=context.folder,
                    resume_dir=finished.training_of(index),
                    loggers=context.loggers,
                    callbacks=() if accumulator is None else (accumulator,),
                    first_step=sum(record.steps for record in records),
                )
            )
            masked.check()
            non_finite = first_non_finite(dict(net.named_parameters()))
            if non_finite is not None:
                raise InvalidSetting(
                    "recovery", recovery.name, f"left {non_finite.name} with {non_finite.counts} values"
                )
            _require_contract(recovery, done, masked.masks(), layers)
            records.append(replace(done, sparsity=levels[index], sparsity_achieved=masked.sparsity))
            if index + 1 < len(levels):
                finished.keep(records)
        left = masked.masks()
    if not context.keep_finished:
        finished.forget()
    return Recovered(left, tuple(records))


def _require_contract(recovery: Recovery, done: object, masks: LayerMasks, layers: Sequence[str]) -> None:
    """Check what `Recovery.recover` promises; user classes may break it."""
    without = [layer for layer in layers if layer not in masks]
    if without:
        allowed = f"left {without[0]} without a mask: `recover` passes the round's masks to round.masked.set"
        raise InvalidSetting("recovery", recovery.name, allowed)
    if not isinstance(done, RoundRecord):
        allowed = f"returned {type(done).__name__} from `recover`, which returns a RoundRecord"
        raise InvalidSetting("recovery", recovery.name, allowed)
