"""Blocks whose attention our kernel computes: the same network, in both layouts, without outputs that have no weights."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import attention
from sparsefront.inference.fusion.attention import SDPA, FusedAttention
from sparsefront.inference.fusion.block_pass import fuse_blocks, fuse_dense
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.fusion.plan import FusionPlan
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.tile_wise import TileWise

PATTERNS = {"tile_wise": TileWise(32), "block_wise": BlockWise(16)}
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TOKENS = {
    "input_ids": torch.randint(5, 90, (3, 12), generator=torch.Generator().manual_seed(0)),
    "attention_mask": (torch.arange(12) < torch.tensor([[12], [7], [3]])).long(),
}
PIXELS = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
LAYOUTS = ("feature_major", "row_major")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    """Plain PyTorch computes the op."""
    monkeypatch.setattr(attention, "unsupported_reason", lambda dtype, d, device: None)


def attentions(net):
    return [part for part in net.modules() if isinstance(part, FusedAttention)]


def planned(report, layout):
    """The same choices with our attention."""
    blocks = {name: replace(block, layout=layout, attention=True) for name, block in report.plan.blocks.items()}
    return FusionPlan.from_json(replace(report.plan, blocks=blocks).to_json())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("model", ["bert", "vit"])
def test_network_with_own_attention(model, pattern, layout, request):
    pruned = request.getfixturevalue(model)(PATTERNS[pattern], 0.75)
    net = copy.deepcopy(pruned.net)
    options = (pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())
    plan = planned(fuse_blocks(copy.deepcopy(net), *options), layout)
    report = fuse_blocks(net, *options, plan=plan)
    assert not report.unsupported and all(block.attention for block in report.blocks.values())
    assert report.plan == plan and all("attention by our kernel" in line for line in report.summary())
    joined, out = (next(iter(report.blocks.values())).products[place] for place in (0, 1))
    if layout == "feature_major":
        assert joined.n + joined.vanished_outputs == 3 * joined.k and joined.vanished_outputs
        assert (joined.layout, out.layout) == ("feature_major",) * 2
    else:
        assert joined.n == 3 * joined.k and (joined.layout, out.layout) == ("row_major",) * 2
    with torch.inference_mode():
        for inputs in pruned.inputs:
            expected = pruned.net(**inputs)
            assert output_error(net(**inputs), expected) < 1e-5
            assert output_error(copy.deepcopy(net).double().float()(**inputs), expected) < 1e-5
    graphs = [graph for part in net.modules() if isinstance(part, FusedBlock) for graph in part.graphs]
    assert len(attentions(net)) == len(graphs) and not any(
        graph.graph.find_nodes(op="call_function", target=SDPA) for graph in graphs
    )
    calls = [
        (graph.get_submodule(node.target), node)
        for graph in graphs
        for node in graph.graph.nodes
        if node.op == "call_module"
    ]
    masks = [node.args[3] for part, node in calls if isinstance(part, FusedAttention)]
    assert all(mask is None or mask.op == "placeholder" for mask in masks), "a mask is in no layout of the stream"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["Roberta", "MPNet", "DistilBert", "ViT", "OPT"])
def test_attention_of_other_encoders(name, layout):
    torch.manual_seed(0)
    inputs = PIXELS if name == "ViT" else TOKENS
    settings = WIDTHS | ({"image_size": 32, "patch_size": 8} if name == "ViT" else {"vocab_size": 100})
    settings |= {"DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}}.get(name, {})
    settings |= {"OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32, "use_cache": False}}.get(name, {})
    net = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)).eval()
    fused = copy.deepcopy(net)
    fuse_dense(fused, inputs, plan=planned(fuse_dense(copy.deepcopy(net), inputs), layout))
    assert len(attentions(fused)) == (0 if name == "OPT" else 2), "OPT scales queries on their way"
    with torch.no_grad():
        output, expected = (model(**inputs).last_hidden_state for model in (fused, net))
    assert output_error(output, expected) < 1e-5


class Block(nn.Module):
    """Query, key and value by one Linear, in the order that is given; attention as it is given."""

    def __init__(self, order="heads", attend=lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v, mask)):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.order, self.attend = order, attend

    def forward(self, x, mask=None, probabilities=False):
        y = self.qkv(self.norm(x))
        if self.order == "heads":
            q, k, v = y.unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        else:  # the parts of a feature side by side
            q, k, v = y.unflatten(-1, (4, 8, 3)).permute(4, 0, 2, 1, 3).unbind(0)
        if probabilities:
            mixed = ((q @ k.transpose(2, 3)).softmax(-1) * 2 - 0.5) @ v
        else:
            mixed = self.attend(q, k, v, mask, x.unflatten(2, (4, 8)).transpose(1, 2))
        return x + self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["heads", "interleaved"])
def test_attention_after_one_linear(order, layout, stack):
    pruned = stack([Block(order), Block(order)], TileWise(16), 0.7)
    net = copy.deepcopy(pruned.net)
    options = (pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())
    fuse_blocks(net, *options, plan=planned(fuse_blocks(copy.deepcopy(net), *options), layout))
    assert len(attentions(net)) == 2
    block, plain = net.blocks[0], pruned.net.blocks[0]
    x, rows = torch.randn(3, 5, 32), torch.tensor([5, 2, 1])
    calls = [{"mask": (torch.arange(5) < rows[:, None])[:, None, None]}, {"mask": torch.randn(4, 5, 5)}]
    calls += [{"probabilities": True}, {"mask": None}]
    with torch.no_grad():
        for call in calls:
            torch.testing.assert_close(block(x, **call), plain(x, **call), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(block.original_output((x,), {}), plain(x), rtol=1e-4, atol=1e-5)
    assert (len(attentions(block)), len(block.graphs)) == (4, 5), "none where the block does not call it"


@pytest.mark.parametrize(
    ("attend", "sites"),
    [
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v, scale=0.1), 1),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v, is_causal=True), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q * 2, k, v), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q.flip(2), k, v), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k.roll(1, 1), v), 1),  # features in another order
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v) + v, 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v).flip(1), 0),
        # those that leave some numbers as they are
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q.clamp(-0.5, 0.5), k, v), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k.clamp(-0.5), v), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v.abs()), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v.clamp(max=8)), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v).clamp(min=0), 0),
        # another input takes part
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q + x, k, v), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v.masked_fill(x > 0.5, 0)), 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v) + x, 0),
        (lambda q, k, v, mask, x: scaled_dot_product_attention(q, k, v, q @ k.transpose(2, 3)), 0),
    ],
)
def test_only_attention_is_replaced(attend, sites, stack):
    pruned = stack([Block(attend=attend)], TileWise(16))
    net = copy.deepcopy(pruned.net)
    options = (pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice())
    report = fuse_blocks(net, *options, plan=planned(fuse_blocks(copy.deepcopy(net), *options), "feature_major"))
    assert len(report.rewritten) == 1 and len(attentions(net)) == sites, "right without a look at outputs"
    with torch.no_grad():
        for inputs in pruned.inputs:
            torch.testing.assert_close(net(**inputs), pruned.net(**inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("known", "fastest"),
    [
        ("feature_major", "feature_major"),
        ("feature_major", "feature_major_attention"),
        ("row_major", "row_major_attention"),
        ("row_major", "feature_major_attention"),
    ],
)
def test_attention_is_chosen_by_time(known, fastest, bert, clock):
    clock.blocks_ms |= {
        "feature_major_attention": 1.5,
        "row_major_attention": 2.5,
        "row_major_attention, compiled": 2.5,
    }
    clock.blocks_ms |= {known: 0.9} | {fastest: 0.5}
    pruned = bert(TileWise(32))
    net = copy.deepcopy(pruned.net)
    report = fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice("sparse"))
    (times,) = report.variants_ms.values()
    assert times.keys() == {*LAYOUTS, f"{known}_attention", "feature_major_attention"}
    for block in report.blocks.values():
        assert f"{block.layout}{'_attention' * block.attention}" == fastest == min(times, key=times.__getitem__)
    assert len(attentions(net)) == 2 * fastest.endswith("_attention")
