"""The measurement of experiments/ddp: ranks end alike, on the CPU here and on two GPUs where there are some; its page."""

from pathlib import Path

import pytest
import torch
from whole_calls import on_every_rank

from sparsefront.training.trainer import TrainerSettings

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "ddp"


def test_ranks_end_with_the_same_masks(modules, served_ranks, tmp_path):
    """While masks tighten, which is more than training under them."""
    training = modules["training"]
    two = TrainerSettings(accelerator="cpu", devices=2, checkpoint=False, progress_bar=False)
    work = training.Work("tiny", batch=2, length=8, warmup=1, steps=2, windows=2)
    first, second = on_every_rank(training.train, work, two, True, trainer=two, folder=tmp_path, loggers=[])
    assert (first["rank"], second["rank"]) == (0, 1) and first["kept"] == 0.5
    assert first["masks_sha256"] == second["masks_sha256"] and first["weights_sha256"] == second["weights_sha256"]
    assert len(first["seconds"]) == len(second["seconds"]) == 2


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_train_bert_alike(modules):
    training, throughput = modules["training"], modules["throughput"]
    two = TrainerSettings(accelerator="gpu", devices=2, precision="bf16-mixed", checkpoint=False, progress_bar=False)
    line, _, ranks = throughput.measure(training.Work("base", 64, 128, warmup=2, steps=4, windows=1), two)
    assert line["same_on_ranks"] and len(ranks) == 4 and line["samples_per_s"] > 0


LINE = {"sequence_length": 8, "devices": 1, "exchange_gradients": "", "ddp_comm_hook": "", "compile": "none"}
LINE |= {"model": "bert-tiny", "batch_per_device": 2, "precision": "32-true", "samples_per_s": 100.0, "lowest": 90.0}
LINE |= {"highest": 110.0, "same_on_ranks": True, "device": "cpu", "torch": "2", "nccl": "", "commit": "abc"}
LINE |= {"date": "2026-11-22"}


def test_page_is_filled_again(modules, tmp_path):
    page = modules["throughput"]
    file = tmp_path / "README.md"
    file.write_text((FOLDER / "README.md").read_text())
    two = LINE | {"devices": 2, "samples_per_s": 185.0, "same_on_ranks": False, "ddp_comm_hook": "bf16_compress"}
    two |= {"exchange_gradients": "after_backward"}
    for _ in range(2):
        page.fill(file, [LINE, two])
    text = file.read_text()
    assert (
        text.count("| cpu | 8 | 2 | bf16, after backward | none | 185 | 90 – 110 | 1.85 | NO |") == 1
        and "Not measured yet" not in text
    )
    assert text.startswith("# Training on two GPUs") and [text.count(mark) for mark in page.MARKS] == [1, 1]


def test_one_device_has_no_ratio(modules):
    page = modules["throughput"]
    assert "| cpu | 8 | 2 | fp32 | none | 100 | 90 – 110 | – | yes |" in page.tables([LINE | {"devices": 2}])


def test_time_of_a_step(modules):
    """Two steps of 10 ms: products, an exchange half beside them, a mask, and nothing for the rest."""
    step_kernels = modules["training"]

    def ran(name, start_ms, end_ms):
        return step_kernels.Kernel(name, start_ms * 1e3, end_ms * 1e3)

    kernels = [
        ran("nvjet_tst_128x128", 0, 6),
        ran("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4, 10),
        ran("void at::native::multi_tensor_apply_kernel<adam>", 10, 12),
        ran("masked_fill_kernel", 12, 12.5),
        ran("triton_poi_fused__to_copy_gelu_0", 14, 15),
        ran("vectorized_elementwise_kernel", 12.25, 13),
    ]
    times = step_kernels.step_times_ms(kernels, steps=2, wall_s=20e-3)
    expected = {"wall_ms": 10, "idle_ms": 3, "generated_ms": 0.5, "exposed_ms": 2, "products_ms": 3, "exchange_ms": 3}
    expected |= {"optimizer_ms": 1, "masks_ms": 0.25, "others_ms": 0.375, "attention_ms": 0}
    assert {name: times[name] for name in expected} == expected


@pytest.mark.gpu
def test_gpu_training_is_profiled(modules, tmp_path):
    work = modules["training"].Work("tiny", batch=4, length=16, warmup=2, steps=2, windows=1, profiled=3)
    one = TrainerSettings(accelerator="gpu", precision="bf16-mixed", checkpoint=False, progress_bar=False)
    (rank,) = modules["training"].train(work, one, False, tmp_path, [])
    times = rank["step"]
    assert times["launches"] > 20 and times["wall_ms"] > times["idle_ms"] > 0 and len(rank["seconds"]) == 1
    assert times["products_ms"] > 0 and times["optimizer_ms"] > 0 and times["masks_ms"] > 0
    assert times["exchange_ms"] == times["exposed_ms"] == 0


def test_lines_of_the_same_run_stay(modules, tmp_path):
    """Those of another way to train or of longer samples, beside which the new ones stand; not those of another commit."""
    merge, file = modules["throughput"].merge_lines, tmp_path / "throughput.csv"
    merge(file, [LINE, LINE | {"devices": 2, "samples_per_s": 150.0}])
    lines = merge(file, [LINE | {"devices": 2, "samples_per_s": 190.0}, LINE | {"devices": 2, "compile": "blocks"}])
    rates = [(line["devices"], line["compile"], line["samples_per_s"]) for line in lines]
    assert rates == [("1", "none", "100.0"), ("2", "blocks", "100.0"), ("2", "none", "190.0")]
    lines = merge(file, [LINE | {"sequence_length": 16, "samples_per_s": 40.0}])
    assert [line["sequence_length"] for line in lines] == ["8", "8", "8", "16"]
    alone = modules["throughput"].tables(lines[-1:] + [lines[-1] | {"devices": 2, "samples_per_s": 80.0}] + lines)
    assert "| cpu | 16 | 2 | fp32 | none | 80 | 90 – 110 | 2.00 | yes |" in alone
    assert len(merge(file, [LINE | {"commit": "def"}])) == 1
    lines = merge(file, [LINE | {"device": "NVIDIA H100 80GB HBM3", "commit": "efg", "devices": 2}])
    assert [line["device"] for line in lines] == ["NVIDIA H100 80GB HBM3", "cpu"]
    assert "| H100 | 8 | 2 | fp32 | none | 100 | 90 – 110 | – | yes |" in modules["throughput"].tables(lines)


STEP = {"device": "cpu", "sequence_length": 8, "devices": 1, "exchange_gradients": "", "ddp_comm_hook": ""}
STEP |= {"compile": "blocks", "exchange_alone_ms": "", "launches": 300}
PARTS = "wall idle exposed products attention optimizer masks copies others".split()
STEP |= dict.fromkeys([f"{part}_ms" for part in PARTS], 1.25)


def test_page_tells_the_time_of_steps(modules):
    told = modules["throughput"].tables([LINE], [STEP])
    assert f"| cpu | 8 | 1 | – | blocks |{' 1.2 |' * 4} – |{' 1.2 |' * 5} – | 300 |" in told
