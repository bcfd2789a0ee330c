"""Ranks of a training in processes that have imported torch already.

A rank imports it for longer than most tests train. A server imports it once, without running anything, and forks for every rank.
"""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

IMPORTED = ["sparsefront.training.ranks", "sparsefront.training.fit"]


class RankProcess(ForkServerProcess):
    """Has the environment of the moment in which it is started, as one that is spawned; the server has an older one."""

    def start(self) -> None:
        self._args = (dict(os.environ), self._target, *self._args)
        self._target = run_in
        super().start()


class RankServer(ForkServerContext):
    """Starts processes where `training.ranks` would spawn them."""

    Process = RankProcess

    def __init__(self) -> None:
        super().__init__()
        multiprocessing.set_forkserver_preload(IMPORTED)


def run_in(environment: dict[str, str], target: Callable, *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
