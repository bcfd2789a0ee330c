"""What a machine that does not lead does in a run: it starts ranks for the trainings of the first one, until that one ends."""

import logging
import shutil
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

from sparsefront.training.machines import Announcements, Machine, Training, announcements
from sparsefront.training.rank_group import RankGroup
from sparsefront.training.rank_processes import OtherRank, RankFailed

log = logging.getLogger(__name__)
LOOK_EVERY_S = 0.2


def lend_ranks(machine: Machine, shared: Path) -> None:
    """Train for the first machine until its run ends.

    Args:
        shared: the folder that all machines see, cache_dir.
    Raises:
        Obstacle: what is announced does not come from the first machine.
        RankFailed: a training failed, here or elsewhere; or the first machine is gone.
    """
    log.info("machine %d trains for %s, which leads", machine.index, machine.host)
    told, failure = announcements(machine, shared), None
    while True:
        try:
            training = told.next()
        except RuntimeError as error:
            raise RankFailed(f"{machine.host}, which leads, is gone: {error}") from error
        if training is None:
            break
        failure = _train(training, machine, told)
    if failure is not None:
        raise RankFailed(failure)


def _train(training: Training, machine: Machine, told: Announcements) -> str | None:
    """Run this machine's ranks to their end; returns why they, or another machine's, failed."""
    trainer = training.trainer
    group = RankGroup(trainer.world_size, training.port, trainer.on_gpu, machine.host, machine.index, trainer.num_nodes)
    scratch = Path(tempfile.mkdtemp(prefix="ranks-"))
    ranks: list[OtherRank] = []
    try:
        for rank in group.ranks_here:
            ranks.append(OtherRank(rank, group, training.body, training.arguments, scratch / f"rank_{rank}"))
        running = list(ranks)
        while running:
            wait([rank.process.sentinel for rank in running], LOOK_EVERY_S)
            alive = [
                rank for rank in running if rank.process.is_alive()
            ]  # asked first: what ended has said all it will
            for rank in running:
                rank.raise_if_failed()
            running = alive
            if running and (elsewhere := told.failure()) is not None:
                return elsewhere
    except RankFailed as error:
        told.fail(f"machine {machine.index}: {error}")
        return str(error)
    except RuntimeError as error:
        raise RankFailed(f"{machine.host}, which leads, is gone: {error}") from error
    finally:
        for rank in ranks:
            rank.end()
        shutil.rmtree(scratch, ignore_errors=True)
    return None
