"""Measure training throughput on one and two GPUs, profile a step, and check that ranks end bitwise equal.

    python -m experiments.ddp.throughput [--length 128 384] [--compile none blocks] [--ddp-comm-hook bf16_compress]
    python -m experiments.ddp.throughput --accelerator cpu --model tiny --batch 2 --length 16 --steps 2 --folder /tmp/ddp

BERT-base with random weights, batch size 64 per GPU, 128 or 384 tokens, bf16, NCCL: pruned 2:4 and finetuned by the loop of all
recoveries, on random tokens from the usual text loader. First with fixed masks, timed and then profiled; then, unless compiled,
with gradual pruning by Taylor scores. Writes to --folder throughput.csv and step.csv (a line per length, number of devices,
gradient exchange and trainer.compile; lines of other calls stay), ranks.csv (a line per rank) and the tables of README.md.
Exits with status 1 if ranks differ.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.ddp.training import Work, train
from experiments.harness import page
from experiments.harness.rows import read_lines, today, values_of, write
from sparsefront.provenance import provenance
from sparsefront.training.ranks import other_ranks_running
from sparsefront.training.trainer import TrainerSettings

HERE = Path(__file__).resolve().parent
FEW = 6  # steps of gradual pruning
SAME = ("masks_sha256", "weights_sha256")
COMPILED_WARMUP = 2  # factor on the warm-up
MARKS = "<!-- tables: written by throughput.py -->", "<!-- end of the tables -->"
SHOWN = ("GPU", "tokens", "devices", "gradients", "compile")
WAY = ("device", "sequence_length", "devices", "exchange_gradients", "ddp_comm_hook", "compile")
ALIKE = ("device", "sequence_length", "compile")  # columns in which a line and its one-device baseline agree
KEY = (*WAY, "masks", "rank")
SAME_RUN = ("model", "batch_per_device", "precision", "torch", "commit")  # the same for all lines of a kind of device
PARTS = "idle exposed products generated attention optimizer masks copies others exchange_alone".split()
DURING, AFTER = "during_backward", "after_backward"


def measure(
    work: Work, trainer: TrainerSettings, tighten: bool = True
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """Measure one setting; return its line, the profile of a step on rank 0 (empty if not profiled), and a line per rank."""
    few = replace(work, warmup=0, steps=FEW, windows=1, profiled=0)
    ways = {"fixed": (work, trainer, False)} | ({"tightened": (few, trainer, True)} if tighten else {})
    trained = {}
    with tempfile.TemporaryDirectory(prefix="ddp-") as scratch:
        for masks, arguments in ways.items():
            with other_ranks_running(train, *arguments, trainer=trainer):
                trained[masks] = train(*arguments, Path(scratch), [])
    # a window ends when the last rank is done
    windows = zip(*(rank["seconds"] for rank in trained["fixed"]), strict=True)
    rates = [work.batch * trainer.devices * work.steps / max(taken) for taken in windows]
    device = torch.device(trainer.device)
    facts = provenance(device)
    way = {
        "sequence_length": work.length,
        "devices": trainer.devices,
        "exchange_gradients": trainer.exchange_gradients if trainer.world_size > 1 else "",
        "ddp_comm_hook": trainer.ddp_comm_hook or "",
        "compile": trainer.compile,
    }
    made = {
        "device": facts.gpu or "cpu",
        "torch": facts.torch_version,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else "",
        "commit": facts.commit,
        "date": today(),
    }
    line = way | {
        "model": work.name,
        "batch_per_device": work.batch,
        "precision": trainer.real_precision,
        "samples_per_s": round(median(rates), 1),
        "lowest": round(min(rates), 1),
        "highest": round(max(rates), 1),
        "windows": work.windows,
        "steps": work.steps,
        "same_on_ranks": all(_same(ranks) for ranks in trained.values()),
    }
    rank_lines = [
        way
        | {"device": made["device"], "torch": made["torch"], "masks": name}
        | {"rank": rank["rank"], "kept": round(rank["kept"], 4)}
        | {key: rank[key] for key in SAME}
        | {"commit": facts.commit}
        for name, ranks in trained.items()
        for rank in ranks
    ]
    step = way | trained["fixed"][0]["step"] | made if work.profiled else {}
    return line | made, step, rank_lines


def _same(ranks: list[dict[str, Any]]) -> bool:
    return all(rank[key] == ranks[0][key] for rank in ranks for key in SAME)


def merge_lines(path: Path, lines: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Replace lines of the same settings. Other lines of this kind of device are dropped if network, commit or PyTorch differ,
    since they are not comparable. Lines of other kinds of devices stay.

    Returns:
        all lines, every value as text.
    """
    new = [{name: str(value) for name, value in line.items()} for line in lines]
    written = {values_of(line, KEY) for line in new}
    stay = [
        line
        for line in read_lines(path)
        if values_of(line, KEY) not in written
        and (line["device"] != new[0]["device"] or values_of(line, SAME_RUN) == values_of(new[0], SAME_RUN))
    ]
    merged = sorted(
        [*stay, *new], key=lambda line: (line["device"], int(line["sequence_length"]), *values_of(line, KEY[2:]))
    )
    write(path, list(new[0]), merged)
    return merged


def fill(file: Path, lines: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]] = ()) -> None:
    """Write the tables between the marks of a page; create the page if it is missing."""
    if not file.exists():
        file.write_text("\n".join(MARKS) + "\n", encoding="utf-8")
    page.fill(file, MARKS, "\n".join(tables(lines, steps)))


def tables(lines: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]] = ()) -> list[str]:
    """Markdown: samples per second vs. one device, then the profile of a step."""
    rates = []
    for line in lines:
        alone = [one for one in lines if str(one["devices"]) == "1" and values_of(one, ALIKE) == values_of(line, ALIKE)]
        rate = float(line["samples_per_s"])
        ratio = f"{rate / float(alone[0]['samples_per_s']):.2f}" if alone else "–"
        window = f"{float(line['lowest']):,.0f} – {float(line['highest']):,.0f}"
        same = "yes" if str(line["same_on_ranks"]) == "True" else "NO"
        rates.append([*_way(line), f"{rate:,.0f}", window, ratio, same])
    names = ["samples per second", "lowest – highest window", "× one device", "equal on all ranks"]
    table_lines = page.table([*SHOWN, *names], rates, rule=" --- |")
    if steps:
        head = [*SHOWN, "step", *(part.replace("_", " ") for part in PARTS), "launches"]
        parts = [[*_way(step), *(_ms(step, part) for part in ("wall", *PARTS)), step["launches"]] for step in steps]
        table_lines += [
            "",
            "Milliseconds of a step under the profiler, on rank 0:",
            "",
            *page.table(head, parts, rule=" --- |"),
        ]
    return table_lines


def _ms(step: dict[str, Any], part: str) -> str:
    value = step.get(f"{part}_ms") or ""
    return "–" if value == "" else f"{float(value):.1f}"


def _way(line: dict[str, Any]) -> list[str]:
    """Settings of a line: kind of device, tokens per sample, number of devices, gradient exchange, trainer.compile."""
    exchanged = "bf16" if line["ddp_comm_hook"] == "bf16_compress" else "fp32"
    if line["exchange_gradients"] == "after_backward":
        exchanged += ", after backward"
    devices = str(line["devices"])
    gradients = "–" if devices == "1" else exchanged
    return [_short(line["device"]), str(line["sequence_length"]), devices, gradients, line["compile"] or "none"]


def _short(device: str) -> str:
    """A device's name without maker and memory."""
    return device.removeprefix("NVIDIA ").partition(" ")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--compile", choices=("none", "blocks", "network"), nargs="+", default=["none"])
    parser.add_argument("--accelerator", choices=("gpu", "cpu"), default="gpu", help="cpu only tries the script")
    parser.add_argument("--exchange-gradients", choices=(DURING, AFTER), nargs="+", default=[DURING, AFTER])
    parser.add_argument(
        "--ddp-comm-hook",
        choices=("bf16_compress",),
        help="measured besides, where several GPUs train, with the last of --compile",
    )
    parser.add_argument("--model", default="base", help="tiny, base or large with random weights, or a folder")
    parser.add_argument("--batch", type=int, default=64, help="per device")
    parser.add_argument("--length", type=int, nargs="+", default=[128], help="tokens of a sample")
    parser.add_argument("--warmup", type=int, default=20, help="steps; twice as many where anything is compiled")
    parser.add_argument("--steps", type=int, default=40, help="of a window")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--profiled", type=int, default=10, help="steps after the windows, on a GPU")
    parser.add_argument("--fixed-only", action="store_true", help="no training with masks that tighten")
    parser.add_argument("--folder", type=Path, default=HERE)
    chosen = parser.parse_args()
    on_gpu = chosen.accelerator == "gpu"
    ways = [(1, DURING, None, what) for what in chosen.compile if 1 in chosen.devices]
    several = [devices for devices in chosen.devices if devices > 1]
    ways += [(n, how, None, what) for n in several for how in chosen.exchange_gradients for what in chosen.compile]
    if chosen.ddp_comm_hook:
        ways += [
            (n, how, chosen.ddp_comm_hook, chosen.compile[-1]) for n in several for how in chosen.exchange_gradients
        ]
    ways = [(length, *way) for length in chosen.length for way in ways]
    chosen.folder.mkdir(parents=True, exist_ok=True)
    same = True
    for length, devices, how, hook, what in ways:
        trainer = TrainerSettings(
            accelerator=chosen.accelerator,
            devices=devices,
            exchange_gradients=how,
            ddp_comm_hook=hook,
            compile=what,
            precision="bf16-mixed" if on_gpu else "32-true",
            checkpoint=False,
            progress_bar=False,
        )
        trainer.check()
        warmup = chosen.warmup * (1 if what == "none" else COMPILED_WARMUP)
        profiled = chosen.profiled if on_gpu else 0
        this = Work(chosen.model, chosen.batch, length, warmup, chosen.steps, chosen.windows, profiled)
        line, step, rank_lines = measure(
            this, trainer, tighten=what == "none" and hook is None and not chosen.fixed_only
        )
        print(line, step, sep="\n", flush=True)
        same &= line["same_on_ranks"]
        # at once, since a later measurement may be killed
        lines = merge_lines(chosen.folder / "throughput.csv", [line])
        steps = merge_lines(chosen.folder / "step.csv", [step]) if step else []
        merge_lines(chosen.folder / "ranks.csv", rank_lines)
        fill(chosen.folder / "README.md", lines, steps)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
