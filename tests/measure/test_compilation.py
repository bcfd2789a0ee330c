"""Code is generated while others may time; the GPU is used no sooner than it is shared."""

import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from torch._dynamo.utils import counters

from sparsefront import gpu
from sparsefront.gpu import exclusive, share_gpu
from sparsefront.inference.fusion import block_times
from sparsefront.inference.fusion.block_pass import fuse_dense
from sparsefront.inference.fusion.calls import find_chains, observe_calls
from sparsefront.measure import execution_mode, timers
from sparsefront.measure.execution_mode import call_in_mode, compile_unshared, first_call
from sparsefront.measure.variants import copy_sharing_weights, fuse_linears

CPU = torch.device("cpu")


@pytest.fixture
def modes(tmp_path, monkeypatch) -> list:
    """(what happens, this process's mode on a stand-in for a GPU), of generating code and of running it."""
    pytest.importorskip("fcntl", reason="locks of POSIX systems")
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "lock_name", lambda device: "stand-in")
    monkeypatch.setattr(gpu, "_accesses", {})
    seen = []

    def generate(graph, inputs):
        seen.append(("generates", gpu._access_to(CPU).mode))

        def run(*values):
            seen.append(("runs", gpu._access_to(CPU).mode))
            return graph(*values)

        return run

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", generate)
    torch.compiler.reset()
    yield seen
    torch.compiler.reset()


def test_first_run_takes_the_lock(modes):
    net, x = nn.Linear(4, 3), torch.randn(2, 4)
    compiled = compile_unshared(net)
    with torch.inference_mode(), share_gpu(CPU):
        first_call(lambda: compiled(x), CPU)
        with exclusive(CPU):
            torch.testing.assert_close(compiled(x), net(x))
    assert modes == [("generates", None), ("runs", "shared"), ("runs", "exclusive")]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_default_backend_compiles_it():
    net, x = nn.Sequential(nn.Linear(4, 3), nn.GELU()), torch.randn(2, 4)
    with torch.inference_mode():
        torch.testing.assert_close(compile_unshared(net)(x), net(x))


def swin():
    settings = {"window_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 2}
    net = transformers.SwinModel(transformers.SwinConfig(image_size=32, **settings))
    return net.eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}


def t5():
    settings = {"d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 64, "num_layers": 2, "vocab_size": 100}
    net = transformers.T5EncoderModel(transformers.T5Config(**settings))
    ids = torch.randint(5, 90, (2, 16))
    return net.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids).tril(8)}


@pytest.mark.parametrize("make", [swin, t5])
def test_networks_and_blocks_compile_once(make, monkeypatch):
    """Dynamo runs eager code past its recompile limit, which all blocks of a class share: their clones must not count."""
    monkeypatch.setattr(execution_mode, "_inductor", lambda graph, inputs: graph)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1 << 20))

    def time_layer(layer, *args, **keywords):
        with torch.inference_mode():
            for call in timers._rotation(layer, args, keywords):
                call()
        return SimpleNamespace(latency_us=1.0)

    monkeypatch.setattr(block_times, "time_layer", time_layer)
    net, inputs = make()
    rewritten = copy_sharing_weights(net)
    assert fuse_dense(rewritten, inputs, layout="row_major").rewritten
    torch.compiler.reset()
    limits = torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True)
    with limits:
        for form in (net, rewritten):
            names = [name for blocks in find_chains(net).values() for name in blocks]
            calls = observe_calls(form, names, inputs)
            for name in (names[0], names[-1]):
                counters.clear()
                assert block_times.compiled_block_time_ms(form.get_submodule(name), calls[name]) is not None
                assert counters["stats"]["unique_graphs"] == 1, name
        static = {name: value.clone() for name, value in inputs.items()}
        for form in (net, fuse_linears(net, **inputs), rewritten):
            counters.clear()
            call = call_in_mode("compile", form, static)
            torch.testing.assert_close(call()[0], net(**inputs)[0], rtol=1e-4, atol=1e-4)
            assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
