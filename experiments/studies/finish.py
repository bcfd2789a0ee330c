"""One point, in a process of the pool: a run of the whole program, of which the line keeps the main facts."""

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

from experiments.studies.definition import EXPERIMENTS
from experiments.studies.rows import FACTS, SECONDS, UNSUPPORTED

CONF = EXPERIMENTS.parent / "conf"


def warm_up() -> None:
    """Import what every point needs, and begin with the GPU, while the first dense network trains elsewhere."""
    import torch

    import sparsefront.pipeline  # noqa: F401

    torch.cuda.is_available() and torch.zeros(1, device="cuda")


def finish(overrides: Sequence[str]) -> dict[str, Any]:
    """Run a point; stages that are stored, its own or shared ones, are not repeated.

    Args:
        overrides: of run.py.
    Returns:
        facts of the result by name and `seconds`; or `unsupported`, the reason why there is no such network.
    Raises:
        Obstacle: a disk, a package or memory is in the way, so that nothing is known of the point.
    """
    from sparsefront.errors import InvalidSetting, Obstacle
    from sparsefront.results.record import Result
    from sparsefront.results.run_folder import RESULT_FILE
    from sparsefront.runs import run_overrides

    began = time.perf_counter()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            folder = run_overrides(list(overrides), CONF)
        except Obstacle:
            raise
        except InvalidSetting as error:
            return {UNSUPPORTED: " ".join(str(error).split())}
    result = Result.from_json((folder / RESULT_FILE).read_text())
    facts = {name: result.value_of(name) for name in FACTS}
    return facts | {SECONDS: round(time.perf_counter() - began, 1)}
