"""Calibrations given by hand."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

import pytest
from torch import Tensor


class HandMade:
    """`Calibration` of a single process from finished gradients, inputs (X [rows, K]) or accumulated sums, one item per batch."""

    def __init__(
        self,
        gradients: Iterable[Mapping[str, Tensor]] = (),
        inputs: Iterable[Mapping[str, Tensor]] = (),
        accumulated: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._gradients, self._inputs, self._accumulated = gradients, inputs, accumulated

    def gradients(self, batches: int) -> Iterator[Mapping[str, Tensor]]:
        return islice(self._gradients, batches)

    def input_parts(
        self, batches: int, statistic: Callable[[Tensor], Tensor], decided: object = None
    ) -> Iterator[dict[str, Tensor]]:
        yield self.input_sums(batches, statistic)

    def input_sums(self, batches: int, statistic: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        for batch in islice(self._inputs, batches):
            for layer, x in batch.items():
                sums[layer] = sums.get(layer, 0) + statistic(x)
        return sums

    def accumulated(self) -> Mapping[str, Tensor]:
        return self._accumulated

    def total(self, statistics: dict[str, Tensor]) -> dict[str, Tensor]:
        return statistics


@pytest.fixture
def hand_made() -> type[HandMade]:
    return HandMade
