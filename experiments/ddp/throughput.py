"""How many samples a second one and two GPUs train, and whether every rank ends with the same masks and weights.

    python experiments/ddp/throughput.py [--devices 1 2] [--ddp-comm-hook bf16_compress] [--steps 40]
    python experiments/ddp/throughput.py --accelerator cpu --size tiny --batch 2 --length 16 --steps 2 --folder /tmp/ddp

BERT-base with random weights, batch 64 a GPU, 128 tokens, bf16, NCCL: pruned 2:4 and fine-tuned by the loop that every recovery
uses, on random tokens from the loader of every text. First with fixed masks, which is timed, then with masks that tighten by
Taylor scores while it trains. Writes throughput.csv (a line per number of devices), ranks.csv (a line per rank) and the tables of
README.md in --folder. Ends with status 1 where ranks differ.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from page import fill, write_lines  # beside this file
from training import Work, train

from sparsefront.models.bert import SIZES
from sparsefront.provenance import provenance
from sparsefront.training.rank_processes import on_every_rank
from sparsefront.training.trainer import TrainerSettings

HERE = Path(__file__).resolve().parent
FEW = 6  # steps of the training whose masks tighten
SAME = ("masks_sha256", "weights_sha256")


def measure(work: Work, trainer: TrainerSettings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The line of one number of devices, and those of its ranks."""
    with tempfile.TemporaryDirectory(prefix="ddp-") as scratch:
        where = {"trainer": trainer, "folder": Path(scratch), "loggers": []}
        fixed = on_every_rank(train, work, trainer, False, **where)
        few = replace(work, warmup=0, steps=FEW, windows=1)
        tightened = on_every_rank(train, few, trainer, True, **where)
    # a window is over when the last rank is done
    rates = [work.batch * trainer.devices * work.steps / max(taken) for taken in zip(*(r["seconds"] for r in fixed))]
    device = torch.device(trainer.device)
    facts = provenance(device)
    line = {
        "devices": trainer.devices,
        "ddp_comm_hook": trainer.ddp_comm_hook or "",
        "model": f"bert-{work.size}",
        "batch_per_device": work.batch,
        "sequence_length": work.length,
        "precision": trainer.real_precision,
        "samples_per_s": round(median(rates), 1),
        "lowest": round(min(rates), 1),
        "highest": round(max(rates), 1),
        "windows": work.windows,
        "steps": work.steps,
        "same_on_ranks": all(_same(ranks) for ranks in (fixed, tightened)),
        "device": facts.gpu or "cpu",
        "torch": facts.torch_version,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else "",
        "commit": facts.commit,
        "date": datetime.now(UTC).date().isoformat(),
    }
    told = [
        {
            "devices": trainer.devices,
            "ddp_comm_hook": trainer.ddp_comm_hook or "",
            "masks": name,
            "rank": rank["rank"],
            "kept": round(rank["kept"], 4),
        }
        | {key: rank[key] for key in SAME}
        for name, ranks in (("fixed", fixed), ("tightened", tightened))
        for rank in ranks
    ]
    return line, told


def _same(ranks: list[dict[str, Any]]) -> bool:
    return all(rank[key] == ranks[0][key] for rank in ranks for key in SAME)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--accelerator", choices=("gpu", "cpu"), default="gpu", help="cpu only tries the script")
    parser.add_argument(
        "--ddp-comm-hook", choices=("bf16_compress",), help="measured besides, where several GPUs train"
    )
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--batch", type=int, default=64, help="per device")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--steps", type=int, default=40, help="of a window")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=HERE)
    chosen = parser.parse_args()
    work = Work(chosen.size, chosen.batch, chosen.length, chosen.warmup, chosen.steps, chosen.windows)
    lines, ranks = [], []
    hooked = [(devices, chosen.ddp_comm_hook) for devices in chosen.devices if devices > 1 and chosen.ddp_comm_hook]
    for devices, hook in [*((devices, None) for devices in chosen.devices), *hooked]:
        trainer = TrainerSettings(
            accelerator=chosen.accelerator,
            devices=devices,
            ddp_comm_hook=hook,
            precision="bf16-mixed" if chosen.accelerator == "gpu" else "32-true",
            checkpoint=False,
            progress_bar=False,
        )
        trainer.check()
        line, told = measure(work, trainer)
        print(
            {
                name: line[name]
                for name in ("devices", "ddp_comm_hook", "samples_per_s", "lowest", "highest", "same_on_ranks")
            },
            flush=True,
        )
        lines.append(line)
        ranks += told
    chosen.folder.mkdir(parents=True, exist_ok=True)
    write_lines(chosen.folder / "throughput.csv", lines)
    write_lines(chosen.folder / "ranks.csv", ranks)
    fill(chosen.folder / "README.md", lines, ranks)
    return 0 if all(line["same_on_ranks"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
