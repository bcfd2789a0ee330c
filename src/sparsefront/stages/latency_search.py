"""What stage prune gives a search for a latency: the measurement's batch, held-out data, and a table that all budgets share."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from sparsefront.allocation.choice_table import ChoiceTable
from sparsefront.allocation.measuring import MeasuringAllocation
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment
from sparsefront.gpu_sharing.access import aside, sharing
from sparsefront.latency_search.search import Search
from sparsefront.latency_search.timing import Timing
from sparsefront.pruning.shared_weights import require_none_shared
from sparsefront.stages.bench import Bench
from sparsefront.tasks.base import Batch

TABLE = "table.json"


def check_search(experiment: Experiment, net: nn.Module, layers: Iterable[str]) -> None:
    """Check, before anything is trained, that kernels are swapped in, which is what a search for a latency is about, and that it
    can choose for each layer by itself.

    Args:
        net: also on the meta device.
        layers: those of it that will be pruned.
    Raises:
        InvalidSetting: they are not, or layers share a weight.
    """
    if not isinstance(experiment.allocation, MeasuringAllocation):
        return
    require_none_shared(net, layers, experiment.allocation.name)
    if experiment.kernel.swaps_nothing:
        allowed = (
            f"swaps no kernel in: nothing gets faster, so that allocation={experiment.allocation.name} finds nothing"
        )
        raise InvalidSetting("kernel", experiment.choices["kernel"], allowed)


def make_search(
    experiment: Experiment, store: ArtifactStore, times_key: dict[str, Any], table_key: dict[str, Any], net: nn.Module
) -> Search:
    """Timed as the measurement will be, at its first size; evaluated on the held-out part of train, on training batches where
    none is held out.

    Args:
        times_key: times are measured once for it, and found by networks of other weights.
        table_key: the table is made once for it, and found by searches for other latencies.
        net: only tells the task what its outputs look like.
    """
    bench = Bench.of(experiment, net)
    timing = Timing(bench.inputs, bench.dtype, experiment.measure, experiment.kernel)

    def stored(kind: str, key: dict[str, Any], make: Callable[[], ChoiceTable]) -> ChoiceTable:
        @sharing(bench.device)
        def write(folder: Path) -> None:
            (folder / TABLE).write_text(json.dumps(make().to_json()))

        with aside(bench.device):  # another process may make it, and want to time
            found = store.get_or_create(kind, key, write, stage="prune")
        return ChoiceTable.from_json(found.read_json(TABLE))

    def held_out() -> Iterable[Batch]:
        return bench.data.val_dataloader() if experiment.dataset.valid_fraction else bench.data.train_dataloader()

    return Search(
        timing, held_out, partial(stored, "choice_table", table_key), partial(stored, "choice_times", times_key)
    )
