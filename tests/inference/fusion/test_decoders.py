"""Blocks of decoders: called with tuples and caches, gated activations, RMSNorm, rotary embedding, grouped-query attention."""

import copy

import pytest
import torch
import transformers
from torch import Tensor, nn

import sparsefront as sf
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import fused, placement, product_choice
from sparsefront.inference.fusion.block_pass import fuse_blocks, fuse_dense
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.tile_wise import TileWise

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = WIDTHS | {"vocab_size": 100, "max_position_embeddings": 64}
ROTARY = ["q_proj+k_proj+v_proj", "o_proj", "gate_proj+up_proj", "down_proj"]
DECODERS = {
    "Llama": (TEXT | {"num_key_value_heads": 2}, ROTARY),
    "Gemma": (TEXT | {"num_key_value_heads": 2, "head_dim": 8}, ROTARY),
    "Phi": (TEXT, ["q_proj+k_proj+v_proj", "dense", "fc1", "fc2"]),
}


def tokens(batch, length, padded):
    ids = torch.randint(5, 90, (batch, length), generator=torch.Generator().manual_seed(length))
    mask = (torch.arange(length) >= torch.arange(batch)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask if padded else None}


CALLS = [tokens(3, 12, False), tokens(3, 7, True), tokens(1, 9, True), tokens(2, 1, False)]


def pruned(name, settings, prune_layers):
    """A masked network, and one that is rewritten."""
    torch.manual_seed(0)
    net = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)).eval()
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    formats, masks = prune_layers(net, layers, TileWise(16))
    rewritten = copy.deepcopy(net)
    report = fuse_blocks(rewritten, formats, masks, CALLS[0] | {"use_cache": False}, KernelChoice())
    return net, rewritten, report


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_are_rewritten(name, prune_layers):
    settings, products = DECODERS[name]
    net, rewritten, report = pruned(name, settings, prune_layers)
    assert len(report.rewritten) == 2 and not report.unsupported
    for block in report.blocks.values():
        made = {"+".join(layer.rsplit(".", 1)[-1] for layer in product.layers): product for product in block.products}
        assert sorted(made) == sorted(products)
        assert sum(product.residual for product in made.values()) + block.residual_norms >= 1
        assert name != "Phi" or made["fc1"].activation == "gelu_tanh"  # which its author writes out
    with torch.inference_mode():
        for inputs in CALLS if name == "Llama" else CALLS[1:2]:
            expected = net(**inputs, use_cache=False).last_hidden_state
            assert output_error(rewritten(**inputs, use_cache=False).last_hidden_state, expected) < 1e-5


@pytest.mark.parametrize("name", ["Llama", "Gemma"])
def test_row_norm_adds_the_residual(name, monkeypatch):
    """Where a product cannot, as cuBLAS cannot: RMSNorm adds it and returns the sum."""
    for module in (placement, product_choice):
        monkeypatch.setattr(module, "rows_unsupported_reason", lambda *args, **vectors: None)
    torch.manual_seed(0)
    net = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**DECODERS[name][0])).eval()
    rewritten = copy.deepcopy(net)
    report = fuse_dense(rewritten, CALLS[0] | {"use_cache": False}, layout="row_major")
    for block in report.rewritten.values():
        assert block.residual_norms == 1 and [product.residual for product in block.products] == [
            False,
            False,
            False,
            True,
        ]
    with torch.inference_mode():
        for inputs in CALLS:
            outputs = [model(**inputs, use_cache=False).last_hidden_state for model in (rewritten, net)]
            assert output_error(*outputs) < 1e-5


def test_cache_is_served_by_the_block(prune_layers, caplog):
    fused._log_once.cache_clear()  # a process says it once
    net, rewritten, _ = pruned("Llama", DECODERS["Llama"][0], prune_layers)
    prompt, following = CALLS[0]["input_ids"], CALLS[1]["input_ids"][:, :1]
    kinds = (transformers.DynamicCache, lambda config: transformers.StaticCache(config=config, max_cache_len=20))
    for cache_of in kinds:
        outputs = []
        for model in (net, copy.deepcopy(rewritten), rewritten):
            cache = cache_of(config=net.config)
            with caplog.at_level("INFO"), torch.inference_mode():
                model(prompt, past_key_values=cache)
                place = torch.full((1, 1), prompt.shape[1])
                outputs.append(model(following, past_key_values=cache, position_ids=place).last_hidden_state)
        assert all(output_error(output, outputs[0]) < 1e-5 for output in outputs)
    assert "a rewritten LlamaDecoderLayer is called with a StaticCache: its own code runs" in caplog.text  # the prompt
    moved = rewritten.double()(following, past_key_values=transformers.DynamicCache(config=net.config))
    assert moved.last_hidden_state.dtype == torch.float64


GENERATORS = {
    "Llama": TEXT | {"num_key_value_heads": 2},
    "Qwen2": TEXT | {"num_key_value_heads": 2},
    "OPT": TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "Mistral": TEXT | {"num_key_value_heads": 2, "sliding_window": 8},  # whose cache no graph serves
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", GENERATORS)
def test_swapped_network_samples_masked_tokens(name, device):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**GENERATORS[name])
    net = getattr(transformers, f"{name}ForCausalLM")(config).eval().to(device)
    prompt = {key: value.to(device) for key, value in tokens(3, 9, True).items()}
    masks = sf.prune(net, "tile_wise", 0.5, example_inputs=prompt | {"use_cache": False}, granularity=16)
    masked = copy.deepcopy(net)
    assert sf.swap(net, masks, prompt | {"use_cache": False}, kernel="sparse").sparse_layer_share > 0.9
    settings = {"cache_implementation": "static", "disable_compile": True}  # on a GPU it would compile each step
    settings |= {"do_sample": True, "max_new_tokens": 20, "pad_token_id": 0}
    outputs = []
    for model in (masked, net):
        torch.manual_seed(1)
        outputs.append(model.generate(**prompt, **settings, min_new_tokens=20))
    assert outputs[0].shape == (3, 29) and torch.equal(*outputs)


OTHERS = {
    # attention and the rest side by side
    "GPTJModel": {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    # rotary embeddings of a quarter of the width of a head, which is no length
    "GPTNeoXModel": TEXT,
    # a relative position bias that the first block makes, where its input is, and the others are given
    "T5EncoderModel": {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_of_text(name, prune_layers):
    torch.manual_seed(0)
    config = getattr(transformers, name.replace("Encoder", "").replace("Model", "Config"))
    net = getattr(transformers, name)(config(**OTHERS[name], bos_token_id=1, eos_token_id=1)).eval()
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    formats, masks = prune_layers(net, layers, TileWise(16))
    rewritten = copy.deepcopy(net)
    uncached = {} if name == "T5EncoderModel" else {"use_cache": False}
    report = fuse_blocks(rewritten, formats, masks, CALLS[1] | uncached, KernelChoice())
    assert len(report.rewritten) == (4 if name == "T5EncoderModel" else 2) and not report.unsupported
    with torch.inference_mode():
        for inputs in (CALLS[1], tokens(2, 5, True)):
            outputs = [model(**inputs, **uncached).last_hidden_state for model in (rewritten, net)]
            assert output_error(*outputs) < 1e-5


class Places(nn.Module):
    """Makes tensors, where its input is and on the CPU, one of them of a number, and changes one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 48), nn.Linear(48, 32)
        self.table = nn.Parameter(torch.randn(16, 32))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        y = self.up(x)
        y[:, :1] = 0.5
        y.clamp_(-1, 1)
        return x * torch.tensor(2.0) + self.down(y).add_(self.table[torch.arange(x.shape[1])] * places[:, None])


def test_tensors_that_are_made_and_changed(stack):
    pruned = stack([Places()], TileWise(8))
    net = copy.deepcopy(pruned.net)
    report = fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())
    assert report.rewritten and not report.unsupported
    with torch.inference_mode():
        for inputs in pruned.inputs:
            assert output_error(net(**inputs), pruned.net(**inputs)) < 1e-5
