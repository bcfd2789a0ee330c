"""The measurement of experiments/ddp: ranks end alike, on the CPU here and on two GPUs where there are some; its page."""

from pathlib import Path

import pytest
import torch

from sparsefront.training.trainer import TrainerSettings

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "ddp"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_train_bert_alike(modules):
    training, throughput = modules["training"], modules["throughput"]
    two = TrainerSettings(accelerator="gpu", devices=2, precision="bf16-mixed", checkpoint=False, progress_bar=False)
    line, _, ranks = throughput.measure(training.Work("base", 64, 128, warmup=2, steps=4, windows=1), two)
    assert line["same_on_ranks"] and len(ranks) == 4 and line["samples_per_s"] > 0


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
