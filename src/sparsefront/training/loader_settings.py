"""A DataLoader with the settings of another one."""

from collections.abc import Callable, Iterable

import torch
from torch.utils.data import DataLoader


def similar_loader(
    loader: DataLoader, *, batch_sampler: Iterable[list] | None, collate_fn: Callable, generator: torch.Generator
) -> DataLoader:
    """Over the same data and with workers of the same kind, which make other batches of it.

    Args:
        generator: gives the workers of each epoch their seed.
    """
    return DataLoader(
        loader.dataset,
        batch_sampler=batch_sampler,
        collate_fn=collate_fn,
        generator=generator,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
        in_order=loader.in_order,
        pin_memory=loader.pin_memory,
        pin_memory_device=loader.pin_memory_device,
    )
