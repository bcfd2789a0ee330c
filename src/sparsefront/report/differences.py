"""In what rows that share a plot still differ, in words: a reader must not take them for runs of one protocol unsaid."""

from collections.abc import Sequence

from sparsefront.report.columns import milliseconds
from sparsefront.report.row import Row

TOLD = {
    "repeats": "repeats",
    "samples_per_repeat": "samples per repeat",
    "warmup_rounds": "warm-up rounds",
    "search_seconds": "seconds of search",
    "recipe": "recipe",
    "commit": "commit",
    "torch_version": "torch",
    "triton_version": "triton",
    "driver": "driver",
    "cuda": "CUDA",
}
PARTS = ("recipe", "trainer")  # whose parameters are told one by one
FIRST_COMPARABLE_VERSION = 4  # of the schema: older rows lack what decides it
BASELINE_SPREAD = 1.05  # slowest over fastest dense baseline from which milliseconds mislead
COMMIT_DIGITS = 9


def differences(rows: Sequence[Row]) -> list[str]:
    """One line for each kind of difference; none where there is nothing to tell.

    Args:
        rows: whose `conditions` agree, or are not recorded in any.
    """
    if len(rows) < 2:
        return []
    told = [*_leaves(rows), *_parameters(rows), *_weights(rows), *_windows(rows)]
    lines = [f"differs between these runs: {'; '.join(told)}"] if told else []
    old = sum(row.identity.schema_version < FIRST_COMPARABLE_VERSION for row in rows)
    if old:
        lines.append(
            f"{old} of {len(rows)} rows are of an older version, which did not record evaluated samples, repeats, searched "
            "modes and weights: they are not known to be comparable"
        )
    return lines + _baseline(rows)


def _leaves(rows: Sequence[Row]) -> list[str]:
    return _where_they_differ({words: [row.leaf(leaf) for row in rows] for leaf, words in TOLD.items()})


def _parameters(rows: Sequence[Row]) -> list[str]:
    values = {}
    for part in PARTS:
        held = [row.leaf(f"{part}_parameters") for row in rows]
        for key in dict.fromkeys(key for parameters in held for key in parameters):
            values[f"{part}.{key}"] = [parameters.get(key) for parameters in held]
    return _where_they_differ(values)


def _where_they_differ(values: dict[str, list]) -> list[str]:
    """`name a, b` for each name whose values are not all the same; None is "unknown" beside others."""
    texts = {name: dict.fromkeys(map(_text, found)) for name, found in values.items()}
    return [f"{name} {', '.join(found)}" for name, found in texts.items() if len(found) > 1]


def _text(value: object) -> str:
    if isinstance(value, str) and len(value.removesuffix("-dirty")) == 40:
        return value[:COMMIT_DIGITS] + ("-dirty" if value.endswith("-dirty") else "")
    return "unknown" if value is None else str(value)


def _weights(rows: Sequence[Row]) -> list[str]:
    found = {row.identity.dense_weights_sha256 for row in rows}
    seeds = sorted({row.identity.seed for row in rows})
    of_seeds = f" (seeds {', '.join(map(str, seeds))})" if len(seeds) > 1 else ""
    return [f"{len(found)} different dense networks{of_seeds}"] if len(found) > 1 else []


def _windows(rows: Sequence[Row]) -> list[str]:
    """n:m, where one pattern met one sparsity with several."""
    found: dict[tuple[str, float], dict[str, None]] = {}
    for row in rows:
        if row.sparsity.n_of_m is not None:
            of_this = found.setdefault((row.choice.pattern, row.sparsity.sparsity_target), {})
            of_this[row.sparsity.n_of_m] = None
    return [
        f"n:m of {pattern} at sparsity {sparsity:g} {' and '.join(windows)}"
        for (pattern, sparsity), windows in found.items()
        if len(windows) > 1
    ]


def _baseline(rows: Sequence[Row]) -> list[str]:
    latencies = [row.speed.latency_dense_ms for row in rows if row.speed.latency_dense_ms is not None]
    if not latencies or max(latencies) <= BASELINE_SPREAD * min(latencies):
        return []
    ends = f"{milliseconds(min(latencies))} to {milliseconds(max(latencies))} ms"
    return [f"the dense baseline took {ends} from process to process: compare speedups, not milliseconds"]
