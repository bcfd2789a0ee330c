"""Describe how results that share a plot still differ, so that readers do not assume a single protocol."""

from collections.abc import Sequence

from sparsefront.progress import counted
from sparsefront.results.candidates import is_pruned, value_text
from sparsefront.results.columns import milliseconds
from sparsefront.results.record import Result

FIELDS = {
    "repeats": "repeats",
    "samples_per_repeat": "samples per repeat",
    "warmup_rounds": "warm-up rounds",
    "autotune_seconds": "seconds of search",
    "recipe": "recipe",
    "commit": "commit",
    "torch_version": "torch",
    "triton_version": "triton",
    "driver": "driver",
    "cuda": "CUDA",
}
ONE_MACHINE = {"gpu": "GPU", "processor": "processor", "commit": "commit", "driver": "driver"}
PARTS = ("recipe", "trainer")  # their parameters are reported individually
BASELINE_SPREAD = 1.05  # slowest over fastest dense baseline above which milliseconds are misleading


def differences(results: Sequence[Result]) -> list[str]:
    """One line per kind of difference.

    Args:
        results: with equal `conditions`, or none recorded.
    """
    if len(results) < 2:
        return []
    values = {words: [result.value_of(field) for result in results] for field, words in FIELDS.items()}
    clauses = [
        *_where_they_differ(values | _parameters(results)),
        *_samples(results),
        *_weights(results),
        *_windows(results),
    ]
    lines = [f"differs between these runs: {'; '.join(clauses)}"] if clauses else []
    return [*_describe_mix(results), *lines, *_equal_under_several_seeds(results), *_baseline(results)]


def _equal_under_several_seeds(results: Sequence[Result]) -> list[str]:
    """A line if results with different seeds are equal: forged, or without randomness; their spread means nothing."""
    seeds: dict[str, set[tuple[int, int | None]]] = {}
    names: dict[str, str] = {}
    for result in results:
        identity = result.identity
        if identity.weights_sha256 is not None:
            seeds.setdefault(identity.weights_sha256, set()).add((identity.seed, identity.recovery_seed))
            names[identity.weights_sha256] = f"{result.choice.prunings} {result.sparsity.sparsity_target:g}"
    lines = []
    for weights, pairs in seeds.items():
        if len(pairs) > 1:
            pair_texts = (
                str(seed) if again in (None, seed) else f"{seed}/{again}" for seed, again in sorted(pairs, key=str)
            )
            runs = f"{names[weights]}: {', '.join(pair_texts)}"
            lines.append(f"equal weights under different seeds ({runs}): one network, not {len(pairs)}")
    return lines


def _describe_mix(results: Sequence[Result]) -> list[str]:
    """Number of machines and commits behind a figure of these results; empty if there is one of each."""
    counts = {words: len({run.value_of(field) for run in results} - {None}) for field, words in ONE_MACHINE.items()}
    several = [counted(count, words) for words, count in counts.items() if count > 1]
    return [f"mixes {' and '.join(several)}: no figure of one machine and commit"] if several else []


def _parameters(results: Sequence[Result]) -> dict[str, list]:
    """`part.key` -> its values, with null as `run.py` writes it, None if not recorded."""
    values = {}
    for part in PARTS:
        held = [result.value_of(f"{part}_parameters") for result in results]
        for key in dict.fromkeys(key for parameters in held for key in parameters):
            values[f"{part}.{key}"] = [
                "null" if parameters.get(key, key) is None else parameters.get(key)
                for result, parameters in zip(results, held)
                if key in parameters or is_pruned(result)  # dense results only record what their training used
            ]
    return values


def _where_they_differ(values: dict[str, list]) -> list[str]:
    """`name a, b` for each name with different values."""
    texts = {name: dict.fromkeys(map(value_text, variants)) for name, variants in values.items()}
    return [f"{name} {', '.join(variants)}" for name, variants in texts.items() if len(variants) > 1]


def _samples(results: Sequence[Result]) -> list[str]:
    """Samples of recoveries with the same number of steps."""
    counts = sorted({result.cost.recovery_samples for result in results} - {None})
    return [f"samples of recovery {', '.join(map(str, counts))}"] if len(counts) > 1 else []


def _weights(results: Sequence[Result]) -> list[str]:
    digests = {result.identity.dense_weights_sha256 for result in results}
    seeds = sorted({result.identity.seed for result in results})
    of_seeds = f" (seeds {', '.join(map(str, seeds))})" if len(seeds) > 1 else ""
    return [f"{len(digests)} different dense networks{of_seeds}"] if len(digests) > 1 else []


def _windows(results: Sequence[Result]) -> list[str]:
    """n:m windows, if a pattern has several at one sparsity."""
    windows: dict[tuple[str, float], dict[str, None]] = {}
    for result in results:
        if result.sparsity.n_of_m is not None:
            choice = result.choice.prunings, result.sparsity.sparsity_target
            windows.setdefault(choice, {})[result.sparsity.n_of_m] = None
    return [
        f"n:m of {pattern} at sparsity {sparsity:g} {' and '.join(several)}"
        for (pattern, sparsity), several in windows.items()
        if len(several) > 1
    ]


def _baseline(results: Sequence[Result]) -> list[str]:
    latencies = [result.speed.latency_dense_ms for result in results if result.speed.latency_dense_ms is not None]
    if not latencies or max(latencies) <= BASELINE_SPREAD * min(latencies):
        return []
    ends = f"{milliseconds(min(latencies))} to {milliseconds(max(latencies))} ms"
    return [f"the dense baseline took {ends} from process to process: compare speedups, not milliseconds"]
