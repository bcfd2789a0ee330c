"""What stage prune gives a search for a latency: the measurement's batch, held-out data, and a table that all budgets share."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn

from sparsefront.allocation.assignment import ChoiceTable
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.gpu import released, shared
from sparsefront.latency_search.search import Search
from sparsefront.latency_search.table import Timing
from sparsefront.stages.bench import EvalContext
from sparsefront.stages.keys import StageKeys
from sparsefront.tasks.base import Batch

TABLE = "table.json"


def make_search(experiment: Experiment, store: ArtifactStore, keys: StageKeys, net: nn.Module) -> Search:
    """Timed as the measurement will be, at its first size; evaluated on the held-out part of train, on training batches where
    none is held out.

    Args:
        keys: with `choice_times`, which times are measured once for and networks of other weights find, and `choice_table`,
            which the table is made once for and searches for other latencies find.
        net: only tells the task what its outputs look like.
    """
    bench = EvalContext.of(experiment, net)
    timing = Timing(bench.inputs, bench.dtype, experiment.measure, experiment.kernel)

    def stored(kind: str, key: dict[str, Any], make: Callable[[], ChoiceTable]) -> ChoiceTable:
        with released(bench.device):  # another process may make it, and want to time
            while (found := store.get(kind, key, stage="prune")) is None:
                with store.making(kind, key) as new, shared(bench.device):
                    (new.folder / TABLE).write_text(json.dumps(make().to_json()), encoding="utf-8")
        return ChoiceTable.from_json(found.read_json(TABLE))

    def held_out() -> Iterable[Batch]:
        return bench.data.val_dataloader() if experiment.dataset.valid_fraction else bench.data.train_dataloader()

    return Search(
        timing,
        held_out,
        partial(stored, "choice_table", keys.choice_table),
        partial(stored, "choice_times", keys.choice_times),
    )
