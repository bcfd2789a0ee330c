"""On what a result was measured, and where that differs from the results around it."""

from collections import Counter
from collections.abc import Sequence

from sparsefront.report.result import Result

FIELDS = {
    "gpu": "GPU",
    "driver": "driver",
    "cuda": "CUDA",
    "torch_version": "torch",
    "triton_version": "triton",
    "commit": "commit",
    "dataset_digest": "data",
}
KERNELS = "as of the commit"  # which holds their sources; the versions of torch, triton and CUDA hold what they call
COMMIT_DIGITS = 9


def provenance(result: Result) -> dict[str, str]:
    """What -> its version or name, in words; only what is known."""
    found = {words: result.value_of(field) for field, words in FIELDS.items()}
    found["kernels"] = None if result.identity.commit is None else KERNELS
    found["measured"] = result.identity.time
    return {words: _short(words, value) for words, value in found.items() if value is not None}


def unlike_the_rest(results: Sequence[Result]) -> dict[str, list[str]]:
    """`run_id` -> where the GPU, its software, the commit, and so the kernels, or the data differ from most of these results.

    Only of results that differ; where two versions are as frequent, the one met first counts as the usual one. Which of the
    kernels ran is no difference: it is chosen for each point. What was searched for is a condition of `conditions`.
    """
    unlike: dict[str, list[str]] = {}
    for field, words in FIELDS.items():
        values = [result.value_of(field) for result in results]
        counts = Counter(values).most_common()
        for result, value in zip(results, values):
            if value != counts[0][0]:
                name = f"{words} and kernels" if field == "commit" else words
                told = f"{name} {_short(words, value)}, elsewhere {_short(words, counts[0][0])}"
                unlike.setdefault(result.identity.run_id, []).append(told)
    return unlike


def uncommitted(results: Sequence[Result]) -> list[str]:
    """A line where code was measured that no commit holds: nobody can check it out again."""
    dirty = sum((result.identity.commit or "").endswith("-dirty") for result in results)
    if not dirty:
        return []
    return [f"{dirty} of {len(results)} runs are of code with changes that no commit holds (commit ends in -dirty)"]


def _short(words: str, value: object) -> str:
    text = "unknown" if value is None else str(value)
    if words != "commit" or value is None:
        return text
    return text[:COMMIT_DIGITS] + ("-dirty" if text.endswith("-dirty") else "")
