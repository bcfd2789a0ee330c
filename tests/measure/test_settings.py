"""Settings of group measure: what they mean on this machine and what they reject."""

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.measure.settings import Measure


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_auto_is_the_cpu(no_gpu):
    settings = Measure()
    assert settings.torch_device == torch.device("cpu")
    assert settings.torch_dtype == torch.float32


def test_auto_is_the_gpu(a_gpu):
    assert Measure().torch_device == torch.device("cuda")
    assert Measure().torch_dtype == torch.float16
    assert Measure(device="cpu").torch_dtype == torch.float32
    assert Measure(dtype="bf16").torch_dtype == torch.bfloat16


def test_the_gpu_must_exist(no_gpu):
    with pytest.raises(InvalidSetting, match="device=cuda: no CUDA device here"):
        Measure(device="cuda")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device", "tpu"),
        ("rates", [10.0]),
        ("p99_ms", 0),
        ("dtype", "int8"),
        ("dtype", "fp16"),
        ("batch_size", 0),
        ("batch_size", []),
        ("batch_size", [8, 0]),
        ("batch_size", [8, 8]),
        ("sequence_length", 0),
        ("sequence_length", []),
        ("sequence_length", [128, -1]),
        ("variants", ["fused_qkv", "bigger_batch"]),
        ("autotune_seconds", -1.0),
        ("warmup", -1),
        ("samples", 4),
        ("repeats", 0),
        ("evaluate_limit", 0),
        ("execution_modes", []),
        ("execution_modes", ["eager", "onnx"]),
        ("execution_modes", ["cuda_graph"]),
    ],
)
def test_unusable_value_is_named(no_gpu, key, value):
    with pytest.raises(InvalidSetting) as rejected:
        Measure(**{key: value})
    assert rejected.value.key == key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates": []}, r"^rates=\[\]: gives mode=serve"),
        ({"rates": [0.0]}, r"^rates=\[0.0\]: must be greater than 0"),
        ({"rates": [50.0, 50.0]}, r"^rates=\[50.0, 50.0\]: names a value twice"),
        ({"rates": [50.0, 5.0]}, "^serve_seconds=10.0: is at least 20 for 5 requests/s: a p99 needs 100 requests"),
    ],
)
def test_unusable_serving_is_named(changes, message):
    with pytest.raises(InvalidSetting, match=message):
        Measure(mode="serve", **changes)
