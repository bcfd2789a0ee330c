"""Instead of a pool of processes."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class InlinePool:
    """Does everything at once, in this process; a failure is what its future holds."""

    def submit(self, task: Callable, *arguments: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(task(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future
