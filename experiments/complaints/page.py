"""The table of the page, from verdicts.csv: python -m experiments.complaints.page."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from experiments.complaints.cases import CASES, Case
from experiments.complaints.rerun import HERE, OURS, THREAD, UNSUPPORTED
from experiments.harness.page import fill, interval, table
from experiments.harness.rows import Row, read_lines

MARKS = ("<!-- verdicts, as page.py prints them -->", "<!-- end of the verdicts -->")


def verdict_table(lines: Mapping[tuple[str, str], Row]) -> list[str]:
    """Lines of Markdown.

    Args:
        lines: (thread, way) -> line of verdicts.csv.
    """
    cells = []
    for case in CASES:
        theirs, ours = (lines.get((case.thread, way)) for way in (THREAD, OURS))
        cells.append([case.thread, case.said, _rerun(case), _verdict(theirs), _verdict(ours), _bytes(theirs, ours)])
    return table(
        ["thread", "reports", "rerun here", "as in the thread", "kernels here", "bytes: dense, thread, here"], cells
    )


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
    counts = [dense, *((line or {}).get("bytes_sparse", "") for line in (theirs, ours))]
    return ", ".join(f"{float(count) / 1e6:.1f} MB" if count else "–" for count in counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=Path, default=HERE / "verdicts.csv")
    lines = {(line["thread"], line["way"]): line for line in read_lines(parser.parse_args().verdicts)}
    fill(HERE / "README.md", MARKS, "\n".join(verdict_table(lines)))


if __name__ == "__main__":
    main()
