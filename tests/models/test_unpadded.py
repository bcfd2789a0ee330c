"""Encoders without padding: equal to padded ones at real tokens."""

import copy

import numpy as np
import pytest
import torch
import transformers
from quick_settings import one_kernel
from torch import Tensor, nn

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.measure.correctness import output_error
from sparsefront.measure.execution_mode import fastest_execution_mode
from sparsefront.models.unpadded import count_tokens, fit_tokens, is_unpadded, unpad

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SIZES |= {"vocab_size": 100, "max_position_embeddings": 40}
HEADS = ("Model", "ForSequenceClassification", "ForQuestionAnswering")
PADDING = {"Bert": 0, "Roberta": 1, "MPNet": 1}


def build(family: str, head: str = "Model", **others: object) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**SIZES | others)
    net = getattr(transformers, f"{family}{head}")(config).eval()
    for name, parameter in net.named_parameters():
        if "relative_attention_bias" in name or "position_embeddings" in name:
            nn.init.normal_(parameter)
    return net


class Unmasked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = build("Bert")

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.encoder(input_ids, input_ids != 0)[0]


def batch(family: str, masked: str) -> dict[str, Tensor]:
    ids = torch.randint(5, 100, (4, 24))
    lengths = torch.tensor([24, 1, 7, 18])
    mask = torch.arange(24) < lengths[:, None]
    if masked == "left":
        mask = mask.flip(1)
    elif masked == "holes":
        mask = mask & (torch.arange(24) % 5 != 2)
    elif masked == "none":
        mask[:] = True
    inputs = {"input_ids": ids.masked_fill(~mask, PADDING[family]), "attention_mask": mask.long()}
    return inputs | ({"token_type_ids": ids % 2} if family == "Bert" else {})


@pytest.mark.parametrize("masked", ["right", "left", "holes", "none"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", PADDING)
@torch.no_grad()
def test_outputs_equal_padded_ones(family, head, masked):
    net, inputs = build(family, head), batch(family, masked)
    other = unpad(copy.deepcopy(net))
    assert is_unpadded(other) and not is_unpadded(net)
    assert other.state_dict().keys() == net.state_dict().keys() and isinstance(other, type(net))
    real = inputs["attention_mask"].bool()
    if masked in ("left", "holes") and head == "ForSequenceClassification":
        inputs["attention_mask"][:, 0] = 1  # whose hidden state is classified
    for one in (other, copy.deepcopy(other)):
        ours, theirs = one(**inputs), net(**inputs)
        for name, expected in theirs.items():
            if expected.shape[:2] == real.shape:
                torch.testing.assert_close(ours[name][real], expected[real], rtol=0, atol=1e-5)
            elif not (name == "pooler_output" and masked in ("left", "holes")):
                torch.testing.assert_close(ours[name], expected, rtol=0, atol=1e-5)
    if masked == "none":
        torch.testing.assert_close(other(inputs["input_ids"])[0], net(inputs["input_ids"])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", PADDING)
@torch.no_grad()
def test_recorded_calls_take_other_lengths(family):
    net, inputs = unpad(build(family, "ForQuestionAnswering")), batch(family, "right")
    assert fit_tokens(net, inputs) == 4 * 14 and count_tokens(32, 7488) == 32 * 240
    compiled = torch.compile(net, backend="eager", fullgraph=True, dynamic=False)
    for order in (slice(None), [3, 0, 2, 1]):
        other = {name: value[order] for name, value in inputs.items()}
        torch.testing.assert_close(compiled(**other).start_logits, net(**other).start_logits)
    with pytest.raises(RuntimeError):
        compiled(**inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])})


@pytest.mark.parametrize(("family", "head"), zip(PADDING, (*HEADS[1:], HEADS[1])))
@torch.no_grad()
def test_swapped_networks_equal_padded_ones(family, head):
    net, inputs = build(family, head), batch(family, "right")
    lengths = inputs["attention_mask"].sum(1)
    masks = {}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear) and ".layer." in name:
            masks[name] = torch.rand_like(layer.weight[:1]).expand_as(layer.weight) < 0.6  # whole inputs
            if name.endswith(("value", ".v")):  # half of the features are constant after attention
                masks[name] = masks[name] & (torch.arange(32) % 2 > 0)[:, None]
            layer.weight *= masks[name]
    padded, dense = copy.deepcopy(net), copy.deepcopy(net)
    rewritten = unpad(make_dense_graph(unpad(copy.deepcopy(net)), inputs))
    report = sf.swap(net, masks, inputs, lengths=lengths, tell=print)
    assert is_unpadded(net) and len(report.fusion.blocks) == 2 and report.sparse_layer_share == 1
    assert all(any(one.vanished_inputs for one in block.products) for block in report.fusion.blocks.values())
    rows = {problem.problem.m for name, problem in report.problems.items() if ".layer." in name}
    assert rows == {56}
    for other in (inputs, {name: value[[2, 0, 3]] for name, value in inputs.items()}):
        here = other["attention_mask"].bool()
        for one in (net, rewritten):
            for ours, theirs in zip(one(**other).values(), padded(**other).values(), strict=True):
                ours, theirs = (ours[here], theirs[here]) if ours.shape == here.shape else (ours, theirs)
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    quick = sf.Measure(samples=5, repeats=1, warmup=0, variants=["fused_graph"])
    comparison = sf.benchmark(dense, net, inputs, lengths=lengths.tolist(), settings=quick, tell=print)
    assert comparison.speedup > 0 and not is_unpadded(dense)


@pytest.mark.gpu
@pytest.mark.parametrize("family", PADDING)
@torch.no_grad()
def test_recorded_and_compiled_networks_agree(family):
    """In each mode on the batch, and on its rows in another order."""
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    net = build(family, "ForQuestionAnswering", **sizes).to("cuda", torch.float16)
    inputs = {name: value.cuda() for name, value in batch(family, "right").items()}
    real, modes = inputs["attention_mask"].bool(), ["eager", "cuda_graph", "compile_cuda_graph"]
    expected = net(**inputs).start_logits[real]
    sparse, device = copy.deepcopy(net), torch.device("cuda")
    masks = sf.prune(sparse, "tile_wise", 0.5, granularity=64, layers="*.layer.*")
    of_sparse = sparse(**inputs).start_logits[real]
    report = sf.swap(sparse, masks, inputs, kernel=one_kernel(), lengths=inputs["attention_mask"].sum(1))
    assert len(report.fusion.blocks) == 2 and not report.fusion.unsupported
    for one, right in ((unpad(net), expected), (sparse, of_sparse), (make_dense_graph(net, inputs), expected)):
        fastest = fastest_execution_mode(one, inputs, execution_modes=modes, device=device, dtype=torch.float16)
        assert not fastest.not_timed
        assert output_error(fastest.call().start_logits[real], right) < 2e-2
    comparison = sf.benchmark(net, sparse, inputs, settings=sf.Measure(samples=5, repeats=1, execution_modes=modes[:2]))
    assert not any("relative error" in why for why in comparison.timed.not_timed.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_mask": torch.zeros(2, 1, 2, 2)}, r"takes attention_mask \[2, 2\], not \[2, 1, 2, 2\]"),
        ({"attention_mask": torch.tensor([[1, 1], [0, 0]])}, "row 1 of the attention mask has no token"),
        ({"input_ids": torch.ones(2, 41, dtype=torch.long)}, "rows of 41 tokens, and the network has 40 positions"),
        ({"inputs_embeds": torch.ones(2, 2, 32)}, "not inputs_embeds"),
        ({"output_attentions": True}, "not output_attentions"),
    ],
    ids=lambda value: next(iter(value), None) if isinstance(value, dict) else None,
)
def test_bad_batches_are_errors(change, message):
    net, ids = unpad(build("Bert")), torch.ones(2, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=message):
        net(**{"input_ids": ids} | change)
    assert net(ids[:, :1]).last_hidden_state.shape == (2, 1, 32)
    states, pooled = net(ids, return_dict=False)
    assert states.shape == (2, 2, 32) and pooled.shape == (2, 32)


@pytest.mark.parametrize(
    ("net", "lengths", "message"),
    [
        (lambda: build("Bert"), [1, 2, 3], r"^lengths=\[1, 2, 3\]: is an integer for each row"),
        (lambda: build("Bert"), 5, "^lengths=5: is an integer for each row"),
        (lambda: Unmasked(), [1, 5], "needs attention_mask, which Unmasked does not take"),
        (lambda: build("Bert"), [1, 0], "^lengths=0: is from 1 to 5, the length of the rows"),
        (lambda: build("Bert"), torch.tensor([6, 5]), "^lengths=6: is from 1 to 5"),
        (lambda: build("Bert"), [1, 2.5], r"^lengths=\[1, 2.5\]: is an integer for each row"),
        (
            lambda: build("DistilBert"),
            [1, 5],
            r"^lengths=\[1, 5\]: needs .* Bert, Roberta, MPNet; this is DistilBertModel",
        ),
        (lambda: build("Bert", is_decoder=True), [1, 5], r"^lengths=\[1, 5\]: needs an encoder; this BertModel is"),
    ],
    ids=["other rows", "one number", "no mask", "empty", "too long", "no number", "another encoder", "decoder"],
)
def test_bad_lengths_are_errors(net, lengths, message):
    net, ids = net(), torch.full((2, 5), 7)
    name, layer = next((name, part) for name, part in net.named_modules() if isinstance(part, nn.Linear))
    with pytest.raises(InvalidSetting, match=message):
        sf.swap(net, {name: torch.ones_like(layer.weight, dtype=torch.bool)}, {"input_ids": ids}, lengths=lengths)
    assert not is_unpadded(net)


@pytest.mark.parametrize("fails", ["before", "example call", "comparison"])
def test_errors_leave_the_padding(fails, monkeypatch):
    net = build("Bert").train()
    inputs, settings = {"input_ids": torch.full((2, 5), 7)}, None
    masks = sf.prune(net, "block_wise", 0.5, granularity=16, tell=len)
    parts, outputs = [(part, type(part), part.training) for part in net.modules()], net.eval()(**inputs)[0]
    net.train()
    if fails == "before":
        settings = sf.Measure(mode="decode")
    elif fails == "example call":
        inputs = {"input_ids": torch.full((2, 5), 100)}  # no token of the vocabulary
    else:
        monkeypatch.setattr("sparsefront.inference.swap.output_error", lambda *_: 1.0)
    with pytest.raises((InvalidSetting, RuntimeError), match="mode|example_inputs|disagrees"):
        sf.swap(net, masks, inputs, lengths=np.array([1, 5]), settings=settings)
    left = [(part, type(part), part.training) for part in net.modules()]
    assert left == parts and not is_unpadded(net)
    assert torch.equal(net.eval()(torch.full((2, 5), 7))[0], outputs)


def test_unpadded_networks_are_not_exported(tmp_path):
    with pytest.raises(InvalidSetting, match="^net=UnpaddedBertModel: computes no padding, and a file would fix"):
        sf.to_pt2(unpad(build("Bert")), {"input_ids": torch.full((2, 5), 7)}, tmp_path / "net.pt2")
