"""Where the milliseconds of a training step are, on one GPU and on two, and what an exchange of all gradients takes alone.

    python experiments/ddp/step.py [--devices 1 2]

The training is that of throughput.py. Writes step.csv in --folder, a line per number of devices and way to exchange gradients.
"""

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from page import write_lines  # beside this file
from step_kernels import ProfileSteps, step_times_ms
from training import Work, pruned_and_recovered

from sparsefront import distributed
from sparsefront.models.bert import SIZES
from sparsefront.provenance import provenance
from sparsefront.training.rank_processes import on_every_rank
from sparsefront.training.trainer import TrainerSettings

HERE = Path(__file__).resolve().parent
BUCKET = 25 * 2**20  # bytes that DDP exchanges at a time
REPEATS = 10


def profiled(work: Work, trainer: TrainerSettings, folder: Path, loggers: list) -> dict[str, Any]:
    """Body of every rank: milliseconds of a step on this one, and of an exchange of all gradients with nothing beside it."""
    watch = ProfileSteps(work.warmup, work.steps)
    net, _ = pruned_and_recovered(work, trainer, False, watch)
    times = step_times_ms(watch.kernels, work.steps, watch.wall_s)
    times["launches"] = round(len(watch.kernels) / work.steps)
    if distributed.world_size() > 1:
        size = sum(parameter.numel() for parameter in net.parameters())
        times["exchange_alone_ms"] = round(exchange_ms(size, torch.float32), 3)
        times["exchange_alone_bf16_ms"] = round(exchange_ms(size, torch.bfloat16), 3)
    return times


def exchange_ms(size: int, dtype: torch.dtype) -> float:
    """Median milliseconds to sum `size` values over the ranks, in pieces as DDP takes them."""
    piece = torch.zeros(BUCKET // 4, dtype=dtype, device="cuda")  # as many values as a bucket of fp32 holds
    taken = []
    for _ in range(REPEATS + 2):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        began.record()
        for _ in range(-(-size // piece.numel())):
            dist.all_reduce(piece)
        ended.record()
        torch.cuda.synchronize()
        taken.append(began.elapsed_time(ended))
    return median(taken[2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--batch", type=int, default=64, help="per device")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=HERE)
    chosen = parser.parse_args()
    work = Work(chosen.size, chosen.batch, chosen.length, chosen.warmup, chosen.steps, windows=1)
    lines = []
    for devices in chosen.devices:
        for hook in (None, "bf16_compress") if devices > 1 else (None,):
            trainer = TrainerSettings(
                accelerator="gpu",
                devices=devices,
                ddp_comm_hook=hook,
                precision="bf16-mixed",
                checkpoint=False,
                progress_bar=False,
            )
            trainer.check()
            with tempfile.TemporaryDirectory(prefix="ddp-") as scratch:
                where = {"trainer": trainer, "folder": Path(scratch), "loggers": []}
                times = on_every_rank(profiled, work, trainer, **where)
            facts = provenance(torch.device("cuda"))
            made = {"device": facts.gpu, "torch": facts.torch_version, "commit": facts.commit}
            date = {"date": datetime.now(UTC).date().isoformat()}
            none = {"exchange_alone_ms": "", "exchange_alone_bf16_ms": ""}
            lines.append({"devices": devices, "ddp_comm_hook": hook or ""} | none | times | made | date)
            print(lines[-1], flush=True)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    write_lines(chosen.folder / "step.csv", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
