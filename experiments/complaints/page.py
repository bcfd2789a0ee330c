"""The page of the threads, from verdicts.csv: python -m experiments.complaints.page."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.complaints.cases import CASES, Case
from experiments.complaints.rerun import HERE, OURS, THREAD, UNSUPPORTED
from experiments.harness.page import interval, table
from experiments.harness.rows import Row
from sparsefront.results.store import read_lines

HEAD = """# Threads that say "sparse is not faster"

The shapes of eight public threads are timed against dense in two ways: as in the thread, through PyTorch, and with the fastest
sparse kernel here. As in the threads seven of nine cases lose, because each call on PyTorch's 2:4 tensors plans
cuSPARSELt's matmul anew. With the kernels here seven win and two *lose*: BERT-large's small GEMMs with 2:4, and
unstructured sparsity at 50 %.
"""
NOTES = """## Notes

- **2:4** wins most at one row, by 1.5 times; it wins little at 32 rows, and 1.08 to 1.28 times in three of four cases with
  thousands of rows.
- **Unstructured** sparsity wins at 90 % with one row and loses at 50 %, where an index costs as much as a weight.
  `kernel=auto` keeps such a layer dense.
- **Verdicts.** Both sides take turns in one process; *here* both run in the faster of eager and a CUDA graph. A **win** or
  **loss** needs a 95 % bootstrap interval beyond 1 % of 1; anything else is a **tie**. A speedup is the median ratio over
  repeats. MB are the bytes of each network on the device.
"""


def page(lines: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """Lines of Markdown.

    Args:
        lines: (thread, way) -> line of verdicts.csv.
    """
    yield HEAD
    cells = []
    for case in CASES:
        theirs, ours = (lines.get((case.thread, way)) for way in (THREAD, OURS))
        cells.append([case.thread, case.said, _rerun(case), _verdict(theirs), _verdict(ours), _bytes(theirs, ours)])
    head = ["thread", "reports", "rerun here", "as in the thread", "kernels here", "bytes: dense, thread, here"]
    yield from table(head, cells)
    yield from ("", NOTES, "## To repeat", "")
    yield "    python -m experiments.complaints.rerun    # on a GPU, in minutes"
    yield from ("    python -m experiments.complaints.page", "")
    places = sorted({f"{line['gpu']}, torch {line['torch']}, {line['date']}" for line in lines.values()})
    yield f"*Measured on*: {'; '.join(places) or 'nothing yet'}. Commit, GPU and date of each row are columns of `verdicts.csv`."


def _rerun(case: Case) -> str:
    dtype = str(case.dtype).removeprefix("torch.")
    parts = [f"{case.shape}, {case.m} rows, {case.pattern.name} {100 * case.sparsity:g} %, {dtype}"]
    parts += [f"chosen here: {case.choice}"] if case.choice else []
    parts += [f"not repeated: {case.unsupported}"] if case.unsupported else []
    return "; ".join(parts)


def _verdict(line: Row | None) -> str:
    if line is None:
        return "missing"
    if line["verdict"] == UNSUPPORTED:
        return f"unsupported: {line['because']}"
    numbers = f"{float(line['speedup']):.2f}x ({interval(line)})"
    times = f"{float(line['dense_ms']):.3f} → {float(line['sparse_ms']):.3f} ms"
    return f"**{line['verdict']}** {numbers}, {times}, {line['kernels']}, {line['mode_sparse']}"


def _bytes(theirs: Row | None, ours: Row | None) -> str:
    dense = next((line["bytes_dense"] for line in (theirs, ours) if line), "")
    found = [dense, *((line or {}).get("bytes_sparse", "") for line in (theirs, ours))]
    return ", ".join(f"{float(count) / 1e6:.1f} MB" if count else "–" for count in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=Path, default=HERE / "verdicts.csv")
    parser.add_argument("--out", type=Path, default=HERE / "README.md")
    arguments = parser.parse_args()
    lines = {(line["thread"], line["way"]): line for line in read_lines(arguments.verdicts)}
    arguments.out.write_text("\n".join(page(lines)) + "\n", encoding="utf-8")
    print(arguments.out)


if __name__ == "__main__":
    main()
