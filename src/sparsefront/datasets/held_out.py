"""The part of train on which choices are made."""

from collections.abc import Sequence

import numpy as np

from sparsefront.errors import InvalidSetting

SPLIT_SEED = 0
"""Fixed, and not the run's seed: runs with different seeds are compared on the same held-out rows."""


def held_out(
    strata: Sequence[int] | np.ndarray, fraction: float, *, path: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows in two, each stratum in the same proportion.

    Args:
        strata: one number per row, its class; rows of one number are divided among themselves.
        fraction: share of each stratum that is held out, in [0, 1); 0 holds nothing out.
        path: where the rows come from, for the message.
    Returns:
        Row numbers (int64, ascending) that stay, and those held out; both hold at least one row, but for a fraction of 0.
    Raises:
        InvalidSetting: fewer than two rows; names `path`.
    """
    strata = np.asarray(strata)
    if len(strata) < 2:
        allowed = f"holds {len(strata)} rows to train on and to hold out: at least 2 are needed"
        raise InvalidSetting("path", path, allowed)
    if fraction == 0:
        return np.arange(len(strata)), np.arange(0)
    # NumPy keeps the stream of RandomState as it is for ever; those of newer generators may change with a version.
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(len(strata))
    # A stable sort keeps the shuffled order within each stratum, so rows picked at even distances are a random sample
    # of it, and every stratum, also a small one, gives its share to within one row.
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    held_so_far = np.floor(np.arange(len(strata) + 1) * fraction + 0.5)
    held = by_stratum[np.diff(held_so_far) > 0]
    held = np.sort(held if len(held) else shuffled[:1])
    return np.setdiff1d(np.arange(len(strata)), held), held
