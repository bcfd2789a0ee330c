"""A search for the pattern, order and sparsity of every layer, as far as a pruning asks for one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor

from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.settings import PruningSettings
from sparsefront.tasks.base import Batch, Task


class SearchRecord(Protocol):
    """What a search did."""

    @property
    def layers(self) -> Mapping[str, Mapping[str, Any]]:
        """Layer -> its pattern and sparsity, and what the search knew of them."""
        ...

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        ...


class LayoutSearch(Protocol):
    """Such as `latency_search.search.Search`."""

    def layout(
        self,
        task: Task,
        scores: Mapping[str, Tensor],
        pruning: PruningSettings,
        calibration: Callable[[], Iterable[Batch]],
        tell: Callable[[str], None],
    ) -> tuple[MaskLayout, SearchRecord]:
        """Search.

        Args:
            task: the dense network and its loss.
            scores: layer that may be pruned -> float32 [N, K].
            pruning: with an allocation that measures.
            calibration: opens a loader of training batches.
            tell: gets a line for each step.
        Raises:
            InvalidSetting: what is asked for is out of reach, its key written from the root.
        """
        ...
