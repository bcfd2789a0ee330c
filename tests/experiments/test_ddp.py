"""The measurement of experiments/ddp: ranks end alike, on the CPU here and on two GPUs where there are some; its page."""

from pathlib import Path

import pytest
import torch

from sparsefront.training.rank_processes import on_every_rank
from sparsefront.training.trainer import TrainerSettings

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "ddp"
NAMES = ("training", "page", "throughput")


@pytest.mark.parametrize("gradual", [False, True])
def test_ranks_end_with_the_same_masks_and_weights(modules, tmp_path, gradual):
    training, _, _ = modules.values()
    two = TrainerSettings(accelerator="cpu", devices=2, checkpoint=False, progress_bar=False)
    work = training.Work("tiny", batch=2, length=8, warmup=1, steps=2, windows=2)
    first, second = on_every_rank(training.train, work, two, gradual, trainer=two, folder=tmp_path, loggers=[])
    assert (first["rank"], second["rank"]) == (0, 1) and first["kept"] == 0.5
    assert first["masks_sha256"] == second["masks_sha256"] and first["weights_sha256"] == second["weights_sha256"]
    assert len(first["seconds"]) == len(second["seconds"]) == 2


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_end_alike_with_bert_base_in_bf16(modules):
    training, _, throughput = modules.values()
    two = TrainerSettings(accelerator="gpu", devices=2, precision="bf16-mixed", checkpoint=False, progress_bar=False)
    line, ranks = throughput.measure(training.Work("base", 64, 128, warmup=2, steps=4, windows=1), two)
    assert line["same_on_ranks"] and len(ranks) == 4 and line["samples_per_s"] > 0


LINE = {
    "devices": 1,
    "model": "bert-tiny",
    "batch_per_device": 2,
    "sequence_length": 8,
    "precision": "32-true",
    "samples_per_s": 100.0,
    "lowest": 90.0,
    "highest": 110.0,
    "same_on_ranks": True,
    "device": "cpu",
    "torch": "2",
    "nccl": "",
    "commit": "abc",
    "date": "2026-11-22",
}
RANK = {"devices": 1, "masks": "fixed", "rank": 0, "kept": 0.5, "masks_sha256": "a" * 64, "weights_sha256": "b" * 64}


def test_the_page_is_filled_again_and_again(modules, tmp_path):
    _, page, _ = modules.values()
    file = tmp_path / "README.md"
    file.write_text((FOLDER / "README.md").read_text())
    two = LINE | {"devices": 2, "samples_per_s": 185.0, "same_on_ranks": False}
    for _ in range(2):
        page.fill(file, [LINE, two], [RANK])
    text = file.read_text()
    assert text.count("| 2 | 185 | 90 – 110 | 1.85 | NO |") == 1 and "Not measured yet" not in text
    assert text.startswith("# Training on two GPUs") and text.count(page.BEGIN) == text.count(page.END) == 1


def test_without_one_device_there_is_no_ratio(modules):
    _, page, _ = modules.values()
    assert "| 2 | 100 | 90 – 110 | – | yes |" in page.tables([LINE | {"devices": 2}], [RANK])
