"""One token with a static cache in rewritten blocks: one kernel attends, where the block has attention that it can compute."""

import copy

import pytest
import torch
import transformers
from torch import nn

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import fused
from sparsefront.inference.fusion.block_pass import fuse_blocks, make_dense_graph
from sparsefront.inference.fusion.cached_attention import attend_one_token
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.measure.correctness import output_error
from sparsefront.measure.decode import Decoder
from sparsefront.patterns.tile_wise import TileWise

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = WIDTHS | {
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
GPT = {
    "vocab_size": 61,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
NETWORKS = {  # settings, and whether the kernel rotates
    "Llama": (TEXT | {"num_key_value_heads": 2}, True),
    "Qwen3": (TEXT | {"num_key_value_heads": 1, "head_dim": 16}, True),  # norms of heads
    "Gemma": (TEXT | {"num_key_value_heads": 4, "head_dim": 8}, True),
    "Phi": (TEXT | {"partial_rotary_factor": 0.5}, True),  # rotates the first half of each head
    "Cohere": (TEXT | {"num_key_value_heads": 2}, False),  # rotates neighbors, by its own operators
    "OPT": (TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}, False),
}
OTHERS = {  # and what its rewritten block says
    "Mistral": (TEXT | {"num_key_value_heads": 2, "sliding_window": 8}, "StaticCache of StaticSlidingWindowLayer"),
    "GPTJ": (GPT | {"rotary_dim": 4}, "by other operators than one scaled_dot_product_attention"),
}


def build(name, settings):
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**settings)).eval()


def rewrite(net, prune_layers):
    """The network with masks, and rewritten."""
    blocks = next(part for part in net.modules() if isinstance(part, nn.ModuleList))
    names = [
        name for name, part in net.named_modules() if isinstance(part, nn.Linear) and part in set(blocks.modules())
    ]
    formats, masks = prune_layers(net, names, TileWise(16))
    rewritten = copy.deepcopy(net)
    ids = torch.zeros(3, 5, dtype=torch.long)
    report = fuse_blocks(rewritten, formats, masks, {"input_ids": ids, "use_cache": False}, KernelChoice())
    assert len(report.rewritten) == 2
    return rewritten


def blocks_of(net):
    return [part for part in net.modules() if isinstance(part, FusedBlock)]


def attentions(block):
    """Calls of the kernel, of each graph that has one."""
    return [
        node for graph in block.graphs for node in graph.graph.find_nodes(op="call_function", target=attend_one_token)
    ]


def run_steps(net, ids, mask, prompt=4, length=16):
    """Logits of the tokens after a prompt, and the cache."""
    cache = transformers.StaticCache(config=net.config, max_cache_len=length)
    outputs = []
    with torch.inference_mode():
        for start, end in ((0, prompt), *((place, place + 1) for place in range(prompt, ids.shape[1]))):
            seen = None if mask is None else mask[:, :end]
            outputs.append(net(ids[:, start:end], attention_mask=seen, past_key_values=cache, use_cache=True).logits)
    return outputs, cache


@pytest.mark.parametrize("name", NETWORKS)
def test_kernel_attends_to_a_static_cache(name, prune_layers, monkeypatch):
    settings, rotates = NETWORKS[name]
    net = build(name, settings)
    rewritten = rewrite(net, prune_layers)
    run_original = FusedBlock._run_original_code
    lengths = []
    monkeypatch.setattr(
        FusedBlock, "_run_original_code", lambda *call: lengths.append(call[2][0].shape[1]) or run_original(*call)
    )
    ids = torch.randint(3, 61, (3, 9))
    padded = (torch.arange(9) >= torch.arange(3)[:, None]).long()
    for batch, mask in ((3, padded), (3, None), (1, None)):
        (expected, cache), (outputs, own) = (run_steps(one, ids[:batch], mask) for one in (net, rewritten))
        for output, truth in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output, truth, rtol=1e-4, atol=1e-5)
        for layer, own_layer in zip(cache.layers, own.layers, strict=True):
            assert int(layer.cumulative_length) == int(own_layer.cumulative_length) == 9
            torch.testing.assert_close(own_layer.keys, layer.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(own_layer.values, layer.values, rtol=1e-4, atol=1e-5)
    assert set(lengths) == {4}, "only prompts run the original code"
    calls = [node for block in blocks_of(rewritten) for node in attentions(block)]
    assert calls and all((node.args[-1] is not None) == rotates for node in calls)


@pytest.mark.parametrize("name", OTHERS)
def test_other_attention_runs_its_own_code(name, prune_layers, caplog):
    fused._log_once.cache_clear()
    settings, reason = OTHERS[name]
    net = build(name, settings)
    with caplog.at_level("INFO"):
        rewritten = rewrite(net, prune_layers)
        ids = torch.randint(3, 61, (2, 12))
        (expected, _), (outputs, _) = (run_steps(one, ids, None) for one in (net, rewritten))
    assert output_error(outputs, expected) < 1e-5
    assert reason in caplog.text and not any(attentions(block) for block in blocks_of(rewritten))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dense_steps_as_a_fused_graph(device):
    """The dense rival gets the same kernel, and a recorded call is right at every position; the cache is its own."""
    net, ids = build("Llama", NETWORKS["Llama"][0]).to(device), torch.randint(3, 61, (2, 8), device=device)
    step = Decoder(net, ids[:, :5], 64).eval()
    token = {"input_ids": ids[:, 5:6].clone()}
    graph = make_dense_graph(step, token)
    assert all(map(attentions, blocks_of(graph))) and len(blocks_of(graph)) == 2 and not blocks_of(net)
    with torch.inference_mode():
        whole = net(ids).logits
        logits = graph(**token)[0]
        if device == "cuda":
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                logits = graph(**token)[0]
        for place in range(5, 8):
            token["input_ids"].copy_(ids[:, place : place + 1])
            if device == "cuda":
                recorded.replay()
            else:
                logits = graph(**token)[0]
            torch.testing.assert_close(logits, whole[:, place], rtol=1e-4, atol=1e-5)
            graph.advance()


@pytest.mark.parametrize("original_ms", [0.5, 3.0])
def test_cached_calls_run_the_faster_code(original_ms, prune_layers, clock):
    clock.blocks_ms["original code"] = original_ms
    rewritten = rewrite(build("Llama", NETWORKS["Llama"][0]), prune_layers)
    assert [block.fuses_cached for block in blocks_of(rewritten)] == 2 * [original_ms > 2]
    assert clock.timed_blocks.count("original code") == 2, "equal blocks are timed once, uncompiled and compiled"
