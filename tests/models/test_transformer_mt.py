"""The transformer of translation: step by step it gives what it gives at once, and it learns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sacrebleu.metrics import BLEU
from safetensors.torch import save_file
from tiny_files import write_pairs

from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.models.transformer_mt import TransformerMT
from sparsefront.tasks.decoding import BOS, PAD

INFO = DataInfo("translation", num_classes=0, sequence_length=20, vocabulary=300, vocabulary_digest="0123456789abcdef")


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_steps_equal_the_whole_target(norm: str) -> None:
    torch.manual_seed(0)
    net = TransformerMT("tiny", norm).build(INFO).eval()
    source, target = torch.randint(3, 300, (3, 6)), torch.randint(3, 300, (3, 5))
    source[1, 4:] = PAD
    target[:, 0] = BOS
    whole = net(source, source != PAD, target)
    scaled = net.embedding(source) * net.embedding.embedding_dim**0.5
    torch.testing.assert_close(net._embed(source, 2), scaled + net.positions[2:8])
    state = net.encode(source, source != PAD)
    for place in range(5):
        given, after = net.step(target[:, place], state)
        assert torch.allclose(given, whole[:, place], atol=1e-5)
        assert torch.equal(net.step(target[:, place], state)[0], given), "a state is not changed by a step"
        state = after
    other = torch.tensor([2, 0, 0, 1])
    given, _ = net.step(target[other, 4], net.reorder(after, other))
    again, _ = net.step(target[:, 4], after)
    assert torch.allclose(given, again[other], atol=1e-5)
    source[1, 4:] = 7
    assert torch.equal(net(source, torch.arange(6) < torch.tensor([[6], [4], [6]]), target)[1], whole[1])


def test_weights_of_another_vocabulary(tmp_path: Path) -> None:
    net = TransformerMT("tiny").build(INFO)
    file = tmp_path / "weights.safetensors"
    save_file(net.state_dict(), file)
    model = TransformerMT("tiny", path=str(file))
    assert torch.equal(model.build(INFO).embedding.weight, net.embedding.weight)
    with pytest.raises(InvalidSetting, match="path=.* was trained with the vocabulary of other data"):
        model.build(replace(INFO, vocabulary_digest="00" * 7 + "01"))
    with pytest.raises(InvalidSetting, match="path=.* does not fit the model; other shapes: embedding.weight"):
        model.build(replace(INFO, vocabulary=301))
    with pytest.raises(
        InvalidSetting, match="max_positions=16: sentences of the dataset have up to dataset.max_length=20"
    ):
        TransformerMT("tiny", max_positions=16).skeleton(INFO)


def test_a_run(run, tmp_path: Path) -> None:
    """Trained, pruned, recovered with a teacher and measured."""
    row = run(
        "model=transformer_mt",
        "model.size=tiny",
        "model.dropout=0",
        "dataset=multi30k",
        f"dataset.path={write_pairs(tmp_path / 'pairs', val=8)}",
        "dataset.vocabulary=340",
        "dataset.max_length=32",
        "recovery=distill",
        "granularity=16",
        "sparsity=0.5",
        "trainer=cpu",
        "measure.device=cpu",
        "measure.evaluate_limit=8",
        "measure.batch_size=4",
        "measure.parts=[encoder,decoder_step,translation]",
    )
    quality = row.quality
    assert quality.metric_name == "bleu" and quality.metric_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert quality.extra_metrics.keys() == {"dense", "masked", "sparse"} and "chrf" in quality.extra_metrics["sparse"]
    assert quality.sparse == pytest.approx(quality.masked, abs=1e-6) and quality.val_sparse is not None
    assert row.sparsity.sparsity_achieved == pytest.approx(0.5, abs=0.12) and row.speed.sequence_length == 32
    encoder, step, whole = row.speed.parts
    assert (encoder["part"], encoder["batch_size"], encoder["sequence_length"]) == ("encoder", 4, 32)
    assert (step["part"], step["batch_size"], step["sequence_length"]) == ("decoder_step", 4 * 5, 16)
    assert (whole["part"], whole["batch_size"], whole["sequence_length"]) == ("translation", 4, 32)
    (texts,) = tmp_path.rglob("results/**/translations.sparse.txt")
    references = (tmp_path / "pairs" / "test.de").read_text().splitlines()[:8]
    scored = BLEU().corpus_score(texts.read_text().splitlines(), [references])
    assert quality.sparse == pytest.approx(scored.score / 100)
    for side in ("dense", "sparse"):
        assert whole[f"tokens_per_s_{side}"] == pytest.approx(4 * 32 / whole[f"latency_{side}_ms"] * 1e3)
        assert min(part[f"latency_{side}_ms"] for part in row.speed.parts) > 0
