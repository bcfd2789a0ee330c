"""The page of the threads, from verdicts.csv and reading.md: python experiments/complaints/page.py."""

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

from cases import CASES, Case  # beside this file
from rerun import HERE, OURS, THREAD, UNSUPPORTED

READING = HERE / "reading.md"  # what the lines of verdicts.csv say, in words
HEAD = """# Threads that say "sparse is not faster"

Eight public threads, their shapes run again with random weights, each in two ways beside dense: as the thread ran it, through
PyTorch alone and launch by launch; and with the kernels here, the fastest that is not dense, both sides in the fastest of
eager and a CUDA graph. Timings are interleaved in one process; a speedup is the median over the repeats of dense's median
over the other's, which need not be the ratio of the two times told, and its interval a 95 % bootstrap one.
**win** and **loss** need an interval that ends beyond 1 % of 1, everything between is a **tie**; **unsupported** was not
timed, and says why. A loss is what `kernel=auto` avoids: it runs such a layer dense. MB are what each network holds on the
device, each storage once.
"""


def page(lines: Mapping[tuple[str, str], dict[str, str]]) -> Iterator[str]:
    """Lines of Markdown.

    Args:
        lines: (thread, way) -> line of verdicts.csv.
    """
    yield HEAD
    yield "| thread | says | rerun here | as in the thread | kernels here | bytes dense, thread, here |"
    yield "|---|---|---|---|---|---|"
    for case in CASES:
        theirs, ours = (lines.get((case.thread, way)) for way in (THREAD, OURS))
        cells = [case.thread, case.said, _rerun(case), _verdict(theirs), _verdict(ours), _bytes(theirs, ours)]
        yield f"| {' | '.join(cells)} |"
    yield ""
    if not lines:
        yield "Nothing is timed yet."
    else:
        places = sorted(
            {
                f"{line['gpu']}, torch {line['torch']}, commit {line['commit']}, {line['date']}"
                for line in lines.values()
            }
        )
        yield f"Measured on {'; '.join(places)}."
        yield from ("", READING.read_text().rstrip())
    yield from (
        "",
        "    python experiments/complaints/rerun.py    # on a GPU, in minutes",
        "    python experiments/complaints/page.py",
    )


def _rerun(case: Case) -> str:
    dtype = str(case.dtype).removeprefix("torch.")
    parts = [f"{case.shape}, {case.m} rows, {case.pattern.name} {100 * case.sparsity:g} %, {dtype}"]
    parts += [f"chosen here: {case.choice}"] if case.choice else []
    parts += [f"not repeated: {case.unsupported}"] if case.unsupported else []
    return "; ".join(parts)


def _verdict(line: dict[str, str] | None) -> str:
    if line is None:
        return "missing"
    if line["verdict"] == UNSUPPORTED:
        return f"unsupported: {line['because']}"
    numbers = f"{float(line['speedup']):.2f}x ({float(line['speedup_low']):.2f}–{float(line['speedup_high']):.2f})"
    times = f"{float(line['dense_ms']):.3f} → {float(line['sparse_ms']):.3f} ms"
    return f"**{line['verdict']}** {numbers}, {times}, {line['kernels']}, {line['mode_sparse']}"


def _bytes(theirs: dict[str, str] | None, ours: dict[str, str] | None) -> str:
    dense = next((line["bytes_dense"] for line in (theirs, ours) if line), "")
    found = [dense, *((line or {}).get("bytes_sparse", "") for line in (theirs, ours))]
    return ", ".join(f"{float(count) / 1e6:.1f} MB" if count else "–" for count in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=Path, default=HERE / "verdicts.csv")
    parser.add_argument("--out", type=Path, default=HERE / "README.md")
    arguments = parser.parse_args()
    lines = {}
    if arguments.verdicts.exists():
        with arguments.verdicts.open(newline="") as file:
            lines = {(line["thread"], line["way"]): line for line in csv.DictReader(file)}
    arguments.out.write_text("\n".join(page(lines)) + "\n")
    print(arguments.out)


if __name__ == "__main__":
    main()
