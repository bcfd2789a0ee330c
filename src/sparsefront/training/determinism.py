"""Runs that repeat to the bit on a GPU: algorithms that add in no fixed order are not used."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic as debugging

from sparsefront.errors import InvalidSetting

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # environment variable
FIXED_WORKSPACE = ":4096:8"  # 32 MiB, as much as torch takes on Hopper without it


def fix_workspace() -> None:
    """cuBLAS repeats its results with a workspace of fixed size. Torch reads this once, before its first product on a GPU."""
    os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Torch's deterministic algorithms, for this long: they would slow down what is timed afterwards.

    Args:
        wanted: False changes nothing.
    Raises:
        InvalidSetting: an operation has no such algorithm, or a product ran before `fix_workspace`.
    """
    if not wanted:
        yield
        return
    with _restored():
        # new tensors are filled with NaN by default, to find those that are read too early; that costs a pass over each
        debugging.fill_uninitialized_memory, torch.backends.cudnn.benchmark = False, False
        torch.use_deterministic_algorithms(True)
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise InvalidSetting("trainer.deterministic", True, f"{str(error).splitlines()[0]}; use false") from error


@contextmanager
def fastest_algorithms() -> Iterator[None]:
    """Every algorithm of torch again, for this long: inside of `deterministic_algorithms`, what is timed runs as it will be used.

    In fp16 with an attention mask the deterministic ones lack cuDNN's attention, which takes half a millisecond of seven from
    BERT-base (batch 128, 128 tokens, H200).
    """
    with _restored():
        torch.use_deterministic_algorithms(False)
        yield


@contextmanager
def _restored() -> Iterator[None]:
    """What torch may do, afterwards as before."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        debugging.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        debugging.fill_uninitialized_memory, torch.backends.cudnn.benchmark = before[2:]
