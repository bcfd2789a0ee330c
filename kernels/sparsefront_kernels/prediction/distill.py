"""From the benchmark's rows to the table that predictions read."""

from collections.abc import Iterable

from sparsefront_kernels.prediction.table import MADE_WITH, LatencyTable, Measured
from sparsefront_kernels.registry import names


def distilled(rows: Iterable[dict[str, str]]) -> LatencyTable:
    """The fastest row-major kernel of this package for each weight and problem, and the dense time beside it.

    Peers are left out, since no layer can call them, and so are wrong products, and masks of patterns, whose settings the table
    does not know.

    Args:
        rows: of one results file, as `bench.row.read_rows` gives them.
    Raises:
        ValueError: rows of several GPU models, or none that can be used.
    """
    ours = set(names())
    right = [row for row in rows if row["correct"] == "True" and not row["mask_settings"]]
    fit = [row for row in right if row["kernel"] in ours and row["layout"] == "row_major"]
    gpus = sorted({row["gpu"] for row in fit})
    if len(gpus) != 1:
        found = ", ".join(gpus) or "none"
        raise ValueError(f"one GPU model makes a table; the row-major rows of our kernels are of {found}")
    best: dict[tuple, Measured] = {}
    for one in map(_measured, fit):
        key = one[: Measured._fields.index("kernel")]
        if key not in best or one.latency_us < best[key].latency_us:
            best[key] = one
    made_with = {name: ", ".join(sorted({row[name] for row in fit})) for name in MADE_WITH}
    return LatencyTable(gpus[0], made_with, tuple(sorted(best.values())))


def _measured(row: dict[str, str]) -> Measured:
    return Measured(**{name: kind(row[name]) for name, kind in Measured.__annotations__.items()})
