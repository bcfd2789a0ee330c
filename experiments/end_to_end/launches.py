"""Networks without launch parameters of their own: what the shipped tables and the kernels' models choose."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from sparsefront_kernels import entries
from sparsefront_kernels.tuning.launches import TunedLaunches, chosen_launch
from sparsefront_kernels.tuning.store import SHIPPED, file_name, tuned_kernel

from sparsefront.inference.fusion import products
from sparsefront.measure import timers


@contextmanager
def shipped_launches_only() -> Iterator[None]:
    """Inside, no launch parameters are timed, and those that this GPU measured for itself do not count."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    shipped_file = SHIPPED / file_name(gpu)
    shipped = json.loads(shipped_file.read_text())["kernels"] if shipped_file.is_file() else {}
    kept = {}
    tunables = {entry.tunable_in(layout) for entry in entries() for layout in entry.layouts}
    for tunable in (one for one in tunables if isinstance(one, TunedLaunches)):
        table = tuned_kernel(gpu, tunable.kernel, tunable.version)
        kept[tunable.kernel] = table, dict(table.entries), dict(table.trials)
        found = shipped.get(tunable.kernel, {})
        table.entries.clear()
        table.trials.clear()
        table.entries.update(found.get("entries", {}) if found.get("version") == tunable.version else {})
    chosen_launch.cache_clear()
    try:
        with (
            patch.object(timers, "untried_launches", lambda *given: None),
            patch.object(products, "assume_launch", lambda *given: None),
        ):
            yield
    finally:
        for table, entries_before, trials_before in kept.values():
            table.entries.clear()
            table.entries.update(entries_before)
            table.trials.clear()
            table.trials.update(trials_before)
        chosen_launch.cache_clear()
