"""The inputs of a latency search in stage prune: the measured batch, held-out data, and a table shared by all budgets."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn

from sparsefront.allocation.assignment import ChoiceTable
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.gpu import release_gpu, share_gpu
from sparsefront.latency_search.search import Search
from sparsefront.latency_search.table import Timing
from sparsefront.stages.bench import EvalContext
from sparsefront.stages.keys import StageKeys
from sparsefront.tasks.base import Batch

TABLE = "table.json"


def make_search(experiment: Experiment, store: ArtifactStore, keys: StageKeys, net: nn.Module) -> Search:
    """Create a search that times as the measurement will, at its first size, and evaluates on the held-out part of train (on
    training batches if nothing is held out).

    Args:
        keys: with `choice_times`, under which networks with other weights find the measured times, and `choice_table`,
            under which searches for other latencies find the table.
        net: only tells the task what its outputs look like.
    """
    bench = EvalContext.of(experiment, net)
    timing = Timing(bench.inputs, bench.dtype, experiment.measure, experiment.kernel)

    def get_or_make(kind: str, key: dict[str, Any], make: Callable[[], ChoiceTable]) -> ChoiceTable:
        with release_gpu(bench.device):  # another process may be making it and need the GPU
            while (artifact := store.get(kind, key, stage="prune")) is None:
                with store.making(kind, key) as new, share_gpu(bench.device):
                    (new.folder / TABLE).write_text(json.dumps(make().to_json()), encoding="utf-8")
        return ChoiceTable.from_json(artifact.read_json(TABLE))

    def open_held_out() -> Iterable[Batch]:
        return bench.data.val_dataloader() if experiment.dataset.valid_fraction else bench.data.train_dataloader()

    return Search(
        timing,
        open_held_out,
        partial(get_or_make, "choice_table", keys.choice_table),
        partial(get_or_make, "choice_times", keys.choice_times),
    )
