"""Networks of transformers that predict the next token, from a folder."""

import json
import sys
from pathlib import Path

import pytest
import torch

from experiments.language_models.tiny import make_llama, make_wikitext
from sparsefront.config.validate import validate
from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.models.huggingface_lm import HuggingFaceLM

WINDOWS = DataInfo(kind="causal_lm", num_classes=0, sequence_length=16)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), hidden=32)


def test_saved_network_has_a_cache(llama: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    model = HuggingFaceLM(path=str(llama))
    net = model.build(WINDOWS)
    net.save_pretrained(tmp_path)
    model.save_pretrained_files(net, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.use_cache and not net.config.use_cache
    ids = torch.randint(300, (1, 8))
    assert torch.allclose(again(ids).logits, net.eval()(ids).logits, atol=1e-6)


def other_folder(llama: Path, folder: Path, **config: object) -> str:
    folder.mkdir()
    for file in llama.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
    return str(folder)


def test_bad_input_names_the_key(llama: Path, tmp_path: Path):
    encoder = other_folder(llama, tmp_path / "encoder", architectures=["BertForMaskedLM"])
    wide = other_folder(llama, tmp_path / "wide", hidden_size=64)
    cases = [
        (HuggingFaceLM(), "path=None: names the folder of a language model; or set model.name to an id of the hub"),
        (HuggingFaceLM(path="/nowhere"), "path=/nowhere: does not exist"),
        (HuggingFaceLM(path=encoder), "path=.*encoder: holds a BertForMaskedLM, which predicts no next token"),
        (HuggingFaceLM(path=wide), "path=.*wide: "),
    ]
    for model, message in cases:
        with pytest.raises(InvalidSetting, match=message):
            model.check()
            model.build(WINDOWS)
    long = DataInfo(kind="causal_lm", num_classes=0, sequence_length=300)
    with pytest.raises(InvalidSetting, match="takes at most 256 tokens and the dataset gives up to 300"):
        HuggingFaceLM(path=str(llama)).skeleton(long)


@pytest.mark.parametrize("pattern", ["n_m", "tile_wise"])
def test_a_run(run, llama: Path, tmp_path: Path, pattern: str):
    """Pruned, recovered by distillation on text of one's own, and measured; less of the metric is better. Token by token too."""
    (tmp_path / "own.txt").write_text("words of my own, again and again. " * 40)
    decode = ["measure.mode=decode", "measure.batch_size=[2,1]", "measure.sequence_length=8"]
    measure = {"n_m": [], "tile_wise": [*decode, "measure.cache_length=24"]}
    recovery = {"n_m": ["recovery=distill", "recovery.epochs=1"], "tile_wise": ["importance=wanda", "recovery=none"]}
    row = run(
        "model=huggingface_lm",
        f"model.path={llama}",
        "dataset=wikitext2",
        f"dataset.path={make_wikitext(tmp_path / 'data')}",
        f"dataset.train_text={tmp_path / 'own.txt'}",
        "dataset.sequence_length=16",
        "recipe=huggingface_lm_wikitext2",
        f"pattern={pattern}",
        *recovery[pattern],
        "granularity=16",
        "sparsity=0.5",
        "trainer=cpu",
        "measure.device=cpu",
        "measure.evaluate_limit=16",
        *measure[pattern],
    )
    speed, generates = row.speed, pattern == "tile_wise"
    assert speed.timed_mode == ("decode" if generates else None) and speed.latency_device == "cpu"
    assert (speed.throughput_dense_samples_per_s is None) == (speed.tokens_per_s_dense is not None) == generates
    if generates:
        assert (speed.batch_size, speed.sequence_length, speed.cache_length) == (2, 8, 24)
        assert speed.tokens_per_s_sparse == pytest.approx(2 / speed.latency_sparse_ms * 1e3)
        assert speed.latency_prefill_dense_ms > 0 and speed.latency_prefill_sparse_ms > 0
        assert [point["batch_size"] for point in speed.curve] == [1] and speed.curve[0]["tokens_per_s_sparse"] > 0
        assert row.kernels.kernel_per_layer["model.layers.0.mlp.up_proj"]["m"] == 2, "a token of each row"
    assert row.quality.metric_name == "perplexity" and row.quality.dense > 100
    assert row.sparsity.sparsity_achieved == pytest.approx(0.5, abs=0.12)  # of layers as small as tiles
    assert row.quality.sparse == pytest.approx(row.quality.masked, rel=1e-3)
    assert not row.quality.val_seen and row.quality.val_sparse > 100 and row.quality.sparse_standard_error > 0


DECODE = {
    "a short cache": (["measure.cache_length=16"], r"measure\.cache_length=16: is too short for 16 tokens and the"),
    "a long cache": (["measure.cache_length=999"], r"measure\.cache_length=999: holds 999 tokens, and .* at most 256"),
    "a long prompt": (["measure.sequence_length=256"], r"measure\.sequence_length=256: holds 320 tokens, .* at"),
    "low precision": (["precision=int8", "measure.dtype=bf16"], r"precision=int8: is none with measure\.mode=decode"),
    "a search": (["pattern=mixed", "allocation=latency_search"], r"allocation=latency_search: times whole forwards"),
    "no torchao": (["measure.dense_low=[int8_weight_only]"], r"measure\.dense_low=.*: needs torchao"),
    "whole forwards": (["measure.lengths=dataset"], r"measure\.lengths=dataset: times whole forwards"),
}


@pytest.mark.parametrize(("overrides", "message"), DECODE.values(), ids=DECODE)
def test_refusals_of_decoding(composed, llama, tmp_path, monkeypatch, overrides, message):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    text = ["model=huggingface_lm", f"model.path={llama}", "dataset=wikitext2", "dataset.sequence_length=16"]
    text += [
        f"dataset.path={make_wikitext(tmp_path)}",
        "recipe=huggingface_lm_wikitext2",
        "recovery=none",
        "trainer=cpu",
    ]
    with pytest.raises(InvalidSetting, match=message) as error:
        validate(composed(*text, "measure.device=cpu", "granularity=16", "measure.mode=decode", *overrides))
    assert "\n" not in str(error.value)
