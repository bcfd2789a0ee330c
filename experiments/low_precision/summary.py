"""The tables of the page: products and networks in fp8 against dense fp8 and fp16.

    python -m experiments.low_precision.summary [--folder experiments/low_precision] [--records experiments/records/low_precision]

Reads packed records of networks, and large.csv, operators.csv and peers.csv of the folder.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from sparsefront_kernels.semi_structured import torchao

from experiments.harness import page
from experiments.harness.rows import Row, read_lines
from experiments.low_precision import operators
from sparsefront.results.run_folder import read_overrides
from sparsefront.results.store import read_results

HERE = Path(__file__).parent
RECORDS = HERE.parent / "records" / "low_precision"
FP8_NETWORK = "fp8"
NAMES = {
    "dense": "dense",
    "channel": "width",
    "depth": "depth",
    "n_m": "2:4",
    "block_wise": "blocks of {}",
    "tile_wise": "tiles of {}",
}
DENSE = (operators.ROWWISE, operators.TENSORWISE)
KERNELS_2_4 = {
    "semi_structured_fp8": "sums without scales",
    "semi_structured_fp8_scaled": "and a pass that scales them",
    torchao.KERNEL: "a scale for each row and output",
}


def network_table(records: Sequence[Path]) -> list[str]:
    """Lines of Markdown, from the packed records of networks.yaml's points."""
    reading = read_results(records)
    lines = []
    for result, place in (entry for entries in reading.places.values() for entry in entries):
        pattern, level = result.choice.pattern, result.sparsity.sparsity_target
        asked = f"precision={FP8_NETWORK}" in (read_overrides(place) or [])
        flat = {name: "" if value is None else str(value) for name, value in result.flat().items()}
        cells = [
            NAMES[pattern].format(result.choice.granularity),
            "" if pattern == "dense" else page.per_cent(str(level)),
            "fp8" if asked else "16 bits",
            flat["precision"],
            f"{result.speed.latency_sparse_ms:.2f}",
            page.speedup(flat),
            "1" if pattern == "dense" else f"{result.speed.speedup_low_precision:.2f}",
            *(f"{100 * float(value):.2f}" for value in (flat["masked"] or flat["dense"], flat["sparse"])),
        ]
        lines.append((list(NAMES).index(pattern), level, not asked, cells))
    head = ("network", "pruned", "asked", "ran", "ms", "over dense fp16", "over dense fp8", "F1, fp16", "F1, as it ran")
    return page.table(head, [cells for *_, cells in sorted(lines)])


def large_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown."""
    head = (
        "network",
        "blocks",
        "sparsity",
        "dense fp16, ms",
        "dense fp8",
        "blocks, fp8",
        "over dense fp16",
        "over dense fp8",
    )
    cells = [
        [
            f"{row['model']} {row['batch']}" + f"×{row['sequence_length']}" * bool(row["sequence_length"]),
            row["granularity"],
            page.per_cent(row["sparsity"]),
            *(f"{float(row[f'latency_{side}_ms']):.2f}" for side in ("dense", "dense_low", "sparse")),
            page.speedup(row),
            f"{float(row['speedup_low_precision']):.2f}",
        ]
        for row in rows
    ]
    return page.table(head, cells)


def peers_table(rows: Sequence[Row]) -> list[str]:
    """Lines of Markdown: each 2:4 kernel over the faster dense e4m3 product of its file, at each size."""
    times: dict[tuple[tuple[str, str], str, str], float] = {}
    for row in rows:  # of several runs the fastest counts, on every side
        key = ((row["k"], row["n"]), row["kernel"], row["notes"])
        times[key] = min(float(row["latency_us"]), times.get(key, math.inf))
    sizes = list(dict.fromkeys(size for size, *_ in times))
    cells = []
    for kernel, note in dict.fromkeys((kernel, note) for _, kernel, note in times if kernel in KERNELS_2_4):
        dense = [min(time for (at, one, _), time in times.items() if at == size and one in DENSE) for size in sizes]
        ratios = [f"{most / times[size, kernel, note]:.2f}" for size, most in zip(sizes, dense, strict=True)]
        cells.append([KERNELS_2_4[kernel], note, *ratios])
    return page.table(("2:4 in e4m3", "kernel", *("→".join(size) for size in sizes)), cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=HERE)
    parser.add_argument("--records", type=Path, nargs="+", default=[RECORDS], help="packed records, or their folders")
    arguments = parser.parse_args()
    print(*network_table(arguments.records), "", sep="\n")
    for name, table in {"large": large_table, "operators": operators.table, "peers": peers_table}.items():
        print(*table(read_lines(arguments.folder / f"{name}.csv")), "", sep="\n")


if __name__ == "__main__":
    main()
