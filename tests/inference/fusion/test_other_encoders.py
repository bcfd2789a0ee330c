"""Encoders that this repository has no model of: found by their operators, or left alone with a reason."""

import copy

import pytest
import torch
import transformers
from torch import nn

from sparsefront.inference.fusion.block_pass import fuse_dense
from sparsefront.inference.fusion.capture import capture, skeleton
from sparsefront.measure.correctness import output_error

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = WIDTHS | {"vocab_size": 100, "max_position_embeddings": 64}
IMAGE = WIDTHS | {"image_size": 32, "patch_size": 8}
IDS = torch.randint(5, 90, (3, 12), generator=torch.Generator().manual_seed(0))
TOKENS = {"input_ids": IDS, "attention_mask": (torch.arange(12) < torch.tensor([[12], [7], [3]])).long()}
PIXELS = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
WHOLE = {"joined": 3, "residuals": 2, "activations": {"none", "gelu"}}
ENCODERS = {
    "Roberta": (TEXT, TOKENS, WHOLE),
    "MPNet": (TEXT, TOKENS, WHOLE),
    "DistilBert": ({"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, TOKENS, WHOLE),
    "ViT": (IMAGE, PIXELS, WHOLE),
    # a factor between the products and the residuals goes into the weights
    "Dinov2": (IMAGE | {"mlp_ratio": 2, "layerscale_value": 0.3}, PIXELS, WHOLE),
    # queries are scaled on their way
    "OPT": (
        TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32, "use_cache": False},
        TOKENS,
        WHOLE | {"activations": {"none", "relu"}},
    ),
    # its activation is no operator of its own
    "CLIPVision": (IMAGE, PIXELS, WHOLE | {"activations": {"none"}}),
}


def build(name, settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}Model")(config).eval()


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_are_rewritten(name):
    settings, inputs, expected = ENCODERS[name]
    net = build(name, settings)
    fused = copy.deepcopy(net)
    report = fuse_dense(fused, inputs)
    assert len(report.blocks) == 2 and not report.unsupported
    for block in report.blocks.values():
        assert len(block.products[0].layers) == expected["joined"] and block.norms == 2
        by_products = sum(product.residual for product in block.products)
        assert by_products + block.residual_norms == expected["residuals"]
        assert {product.activation for product in block.products} == expected["activations"]
    with torch.no_grad():
        copied = copy.deepcopy(fused)  # as where blocks are timed
        assert output_error(copied(**inputs).last_hidden_state, net(**inputs).last_hidden_state) < 1e-5


@pytest.mark.parametrize("bias", [0.0, torch.inf])
@pytest.mark.parametrize("kind", ["Bart", "Marian"])
def test_clamping_blocks_in_half(kind, bias):
    """They ask for it in float16 alone; no graph can, and always clamps."""
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = layers | {"vocab_size": 61, "d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    net = build(kind, sizes | {"pad_token_id": 0, "decoder_start_token_id": 0}).encoder.half()
    fused = copy.deepcopy(net)
    for each in (net, fused):
        torch.nn.init.constant_(each.layers[0].final_layer_norm.bias, bias)
    inputs = {"input_ids": IDS % 61}
    report = fuse_dense(fused, inputs)
    assert len(report.blocks) == 1 and not report.unsupported
    with torch.no_grad():
        whole = net(**inputs).last_hidden_state
        assert whole.isfinite().all() and (whole.max() == 65504 - 1000) == (bias > 0)
        assert output_error(fused(**inputs).last_hidden_state, whole) < 1e-2


class WrittenOut(nn.Module):
    """Attention of 4 heads without PyTorch's own, whose scores are scaled and biased in the ways that networks do it."""

    def __init__(self, score):
        super().__init__()
        self.score = score

    def forward(self, q, k, v, position, padding):
        scores = self.score(q @ k.transpose(-1, -2), position, padding)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    ("score", "fused"),
    [
        (lambda s, position, padding: s / 4, True),
        (lambda s, position, padding: padding + (0.3 * s + position), True),
        (lambda s, position, padding: s.mul_(0.3).add_(position) + padding, True),
        (lambda s, position, padding: (s + position) / 4, False),  # the bias is scaled too
        (lambda s, position, padding: s.tanh() + padding, False),
        (lambda s, position, padding: s - position, False),
    ],
)
def test_attention_that_is_written_out(score, fused):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 16) for _ in range(3))
    arguments = (q, k, v, torch.randn(2, 4, 6, 6), torch.randn(2, 1, 1, 6))
    block = WrittenOut(score)
    graph = capture(skeleton(block), arguments, {}).graph
    calls = {str(node.target) for node in graph.nodes}
    assert ("aten.scaled_dot_product_attention.default" in calls) == fused
    (computed,) = torch.fx.GraphModule(block, graph)(*arguments)
    assert torch.allclose(computed, block(*arguments), atol=1e-6)
