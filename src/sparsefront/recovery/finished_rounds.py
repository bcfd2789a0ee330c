"""What outlives a killed recovery: whose it is, the end of the last round that was done, and the training of the next one."""

import json
import logging
import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from sparsefront import distributed
from sparsefront.artifacts.content_digest import checksums, find_damage
from sparsefront.artifacts.durable import rename_synced, save_tensors, sync_tree, whole_file
from sparsefront.artifacts.lease import require_all
from sparsefront.artifacts.owner import process_tag
from sparsefront.errors import InvalidSetting
from sparsefront.pruning.mask_file import MASKS, load_masks, save_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.movement import AccumulateMovement
from sparsefront.recovery.base import RoundRecord
from sparsefront.recovery.identity import Identity
from sparsefront.training.epoch_weights import WEIGHTS, save_weights

log = logging.getLogger(__name__)
RECORDS, MOVEMENT, CHECKSUMS = "rounds.json", "movement.safetensors", "checksums.json"
IDENTITY = "identity.json"


class FinishedRounds:
    """Keeps all that the next round depends on: weights, masks, movement, and the records of the rounds so far.

    Args:
        folder: outlives a killed run; None = nothing is kept, nor looked for.
        net: the network that the rounds train.
        masked: applies its masks.
        movement: the accumulator that all rounds share, where the importance has one.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        net: nn.Module,
        masked: MaskedWeights,
        movement: AccumulateMovement | None,
    ) -> None:
        self.folder = folder
        self.net, self.masked, self.movement = net, masked, movement

    def training_of(self, index: int) -> Path | None:
        """Where the training of a round, counted from 0, keeps its own state."""
        return self.folder and self.folder / f"round_{index:03d}"

    def begin(self, identity: Identity) -> None:
        """Require that what the folder holds is of this recovery, before anything is restored.

        Raises:
            InvalidSetting: it is of another one; names in what they differ.
        """
        assert self.folder is not None
        file = self.folder / IDENTITY
        found = json.loads(file.read_text()) if file.exists() else {}
        if found == identity:
            return
        if self._states():
            differing = [name for name in {**identity, **found} if identity.get(name) != found.get(name)]
            what = f"what another recovery left there differs in {', '.join(differing)}"
            allowed = f"{what}: repeat that one to go on with it, name another folder, or remove this one to begin anew"
            raise InvalidSetting("place.unfinished", self.folder, allowed)
        if distributed.rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as new:
                new.write_text(json.dumps(identity))

    def forget(self) -> None:
        """After the last round, on rank 0: what comes next in this folder begins anew. Other files stay."""
        if self.folder is None or distributed.rank() != 0:
            return
        for state in self._states():
            shutil.rmtree(state, ignore_errors=True)
        (self.folder / IDENTITY).unlink(missing_ok=True)
        with suppress(OSError):  # it holds other files
            self.folder.rmdir()

    def _states(self) -> list[Path]:
        """Folders of finished rounds and of the trainings of rounds."""
        return sorted(path for kind in ("after_*_rounds", "round_*") for path in self.folder.glob(kind))

    def restore(self) -> list[RoundRecord]:
        """Put the network where the last finished round left it.

        Returns:
            the records of all finished rounds, all of whose time counts as earlier; empty where there are none, or what
            they left is damaged, and nothing is touched.
        """
        found = sorted(self.folder.glob("after_*_rounds")) if self.folder else []
        if not found:
            return []
        last = found[-1]
        if (damage := _damage(last)) is not None:
            if distributed.rank() == 0:
                log.warning("damaged, so the rounds start again: %s: %s", last, damage)
            return []
        self.net.load_state_dict(load_file(last / WEIGHTS))
        self.masked.set(load_masks(last / MASKS))
        if self.movement is not None:
            self.movement.load_state_dict(load_file(last / MOVEMENT))
        records = [RoundRecord(**record) for record in json.loads((last / RECORDS).read_text())]
        return [replace(record, earlier_seconds=record.seconds) for record in records]

    def keep(self, records: list[RoundRecord]) -> None:
        """After a round that others follow; whole or not at all, on rank 0. What it was itself made from is forgotten."""
        if self.folder is None or distributed.rank() != 0:
            return
        done = self._after(len(records))
        require_all()
        new = done.with_suffix(f".new-{process_tag()}")
        new.mkdir(parents=True)
        save_weights(self.net, new / WEIGHTS)
        save_masks(self.masked.masks(), new / MASKS)
        if self.movement is not None:
            save_tensors(new / MOVEMENT, self.movement.state_dict())
        (new / CHECKSUMS).write_text(json.dumps(checksums(new)))
        (new / RECORDS).write_text(json.dumps([asdict(record) for record in records]))
        sync_tree(new)
        shutil.rmtree(done, ignore_errors=True)  # damaged
        rename_synced(new, done)
        for old in (self._after(len(records) - 1), self.training_of(len(records) - 1)):
            shutil.rmtree(old, ignore_errors=True)

    def _after(self, rounds: int) -> Path:
        return self.folder / f"after_{rounds:03d}_rounds"


def _damage(folder: Path) -> str | None:
    """Which file is not what was kept, and how."""
    try:
        [RoundRecord(**record) for record in json.loads((folder / RECORDS).read_text())]
        return find_damage(folder, json.loads((folder / CHECKSUMS).read_text()))
    except (OSError, ValueError, TypeError) as error:
        return str(error)
