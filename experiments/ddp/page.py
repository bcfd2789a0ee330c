"""The measurement as CSV files and as the tables of README.md."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- tables: written by throughput.py -->", "<!-- end of the tables -->"


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """All lines of one call; those of an earlier one are replaced."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def fill(page: Path, lines: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]]) -> None:
    """Put the tables between the marks of a page; one that has none gets them at its end."""
    text = page.read_text() if page.exists() else ""
    before, found, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if found else "\n"
    page.write_text("\n".join([f"{before}{BEGIN}", "", *tables(lines, ranks), "", f"{END}{after}"]))


def tables(lines: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: samples per second beside those of one device, then the digests of every rank."""
    first, told = lines[0], []
    alone = next((line["samples_per_s"] for line in lines if line["devices"] == 1), None)
    told += [
        "| devices | gradients | samples per second | lowest – highest window | × one device | equal on all ranks |"
    ]
    told += ["| --- | --- | --- | --- | --- | --- |"]
    for line in lines:
        ratio = "–" if alone is None else f"{line['samples_per_s'] / alone:.2f}"
        told.append(
            f"| {line['devices']} | {exchanged(line)} | {line['samples_per_s']:,.0f} "
            f"| {line['lowest']:,.0f} – {line['highest']:,.0f} | {ratio} | {'yes' if line['same_on_ranks'] else 'NO'} |"
        )
    told += ["", "| devices | gradients | masks | rank | kept | sha256 of the masks | sha256 of the weights |"]
    told += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for rank in ranks:
        digests = " | ".join(f"`{rank[key][:16]}`" for key in ("masks_sha256", "weights_sha256"))
        told.append(
            f"| {rank['devices']} | {exchanged(rank)} | {rank['masks']} | {rank['rank']} | {rank['kept']:.0%} | {digests} |"
        )
    made = f"{first['device']}, torch {first['torch']}" + (f", NCCL {first['nccl']}" if first["nccl"] else "")
    what = f"{first['model']}, batch {first['batch_per_device']} a device, length {first['sequence_length']}"
    told += ["", f"{what}, {first['precision']}; {made}; commit {first['commit']}, {first['date']}."]
    return told


def exchanged(line: dict[str, Any]) -> str:
    """In which dtype devices exchange gradients."""
    if line["devices"] == 1:
        return "–"
    return "bf16" if line["ddp_comm_hook"] == "bf16_compress" else "fp32"
