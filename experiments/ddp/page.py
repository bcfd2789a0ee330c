"""The measurement as CSV files and as the tables of README.md."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- tables: written by throughput.py -->", "<!-- end of the tables -->"
SHOWN = ("GPU", "tokens", "devices", "gradients", "compile")
WAY = ("device", "sequence_length", "devices", "exchange_gradients", "ddp_comm_hook", "compile")
ALIKE = ("device", "sequence_length", "compile")  # of a line and of that of one device beside it
KEY = (*WAY, "masks", "rank")
SAME_RUN = ("model", "batch_per_device", "precision", "torch", "commit")  # of all lines of one kind of device
PARTS = (
    "idle",
    "exposed",
    "products",
    "generated",
    "attention",
    "optimizer",
    "masks",
    "copies",
    "others",
    "exchange_alone",
)


def merge_lines(path: Path, lines: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Write lines in place of those of the same way to train. Others of their kind of device stay where network, commit and
    PyTorch are the same, or else go: they would be compared. Lines of other kinds of devices stay.

    Returns:
        all lines, every value as text.
    """
    new = [{name: str(value) for name, value in line.items()} for line in lines]
    known = []
    if path.exists():
        with path.open(newline="") as file:
            known = list(csv.DictReader(file))
    written = {_values(line, KEY) for line in new}
    stay = [
        line
        for line in known
        if _values(line, KEY) not in written
        and (line["device"] != new[0]["device"] or _values(line, SAME_RUN) == _values(new[0], SAME_RUN))
    ]
    merged = sorted(
        [*stay, *new], key=lambda line: (line["device"], int(line["sequence_length"]), *_values(line, KEY[2:]))
    )
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(new[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged)
    return merged


def _values(line: dict[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    return tuple("" if (value := line.get(name)) is None else str(value) for name in names)


def fill(page: Path, lines: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]] = ()) -> None:
    """Put the tables between the marks of a page; one that has none gets them at its end."""
    text = page.read_text() if page.exists() else ""
    before, found, rest = text.partition(BEGIN)
    after = rest.partition(END)[2] if found else "\n"
    page.write_text("\n".join([f"{before}{BEGIN}", "", *tables(lines, steps), "", f"{END}{after}"]))


def tables(lines: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]] = ()) -> list[str]:
    """Markdown: samples per second beside those of one device, then where a step's time is."""
    names = ["samples per second", "lowest – highest window", "× one device", "equal on all ranks"]
    told = _table([*SHOWN, *names])
    for line in lines:
        alone = [one for one in lines if str(one["devices"]) == "1" and _values(one, ALIKE) == _values(line, ALIKE)]
        rate = float(line["samples_per_s"])
        ratio = f"{rate / float(alone[0]['samples_per_s']):.2f}" if alone else "–"
        window = f"{float(line['lowest']):,.0f} – {float(line['highest']):,.0f}"
        same = "yes" if str(line["same_on_ranks"]) == "True" else "NO"
        told.append(_row([*_way(line), f"{rate:,.0f}", window, ratio, same]))
    if steps:
        told += ["", "Milliseconds of a step under the profiler, on rank 0:", ""]
        told += _table([*SHOWN, "step", *(p.replace("_", " ") for p in PARTS), "launches"])
        for step in steps:
            parts = [
                f"{float(value):.1f}" if (value := step.get(f"{part}_ms") or "") != "" else "–"
                for part in ("wall", *PARTS)
            ]
            told.append(_row([*_way(step), *parts, str(step["launches"])]))
    return told


def _table(names: Sequence[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _way(line: dict[str, Any]) -> list[str]:
    """Kind of device, tokens of a sample, devices, how they exchange gradients, and trainer.compile."""
    exchanged = "bf16" if line["ddp_comm_hook"] == "bf16_compress" else "fp32"
    if line["exchange_gradients"] == "after_backward":
        exchanged += ", after backward"
    devices = str(line["devices"])
    gradients = "–" if devices == "1" else exchanged
    return [_short(line["device"]), str(line["sequence_length"]), devices, gradients, line["compile"] or "none"]


def _short(device: str) -> str:
    """Without maker and memory."""
    return device.removeprefix("NVIDIA ").partition(" ")[0]
