"""BERT from folders and of known sizes: strict where transformers is lenient, quiet where it is loud."""

import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertForQuestionAnswering, BertForSequenceClassification

from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.models.bert import Bert

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(bert_folder: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(bert_folder, tmp_path / "bert"))


def change_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_saved_files_and_plain_weights_make_a_folder_for_from_pretrained(
    bert_folder: Path, pair_classes: DataInfo, sentences: list[str]
):
    ours = Bert(path=str(bert_folder))
    ours.check()
    net = ours.build(pair_classes).eval()
    theirs, report = BertForSequenceClassification.from_pretrained(bert_folder, output_loading_info=True)
    assert not any(report.values())
    inputs = AutoTokenizer.from_pretrained(bert_folder)(sentences[:3], padding=True, return_tensors="pt")
    assert inputs["input_ids"].tolist() == ours.tokenizer()(sentences[:3], padding=True)["input_ids"]
    with torch.no_grad():
        assert torch.equal(net(**inputs).logits, theirs.eval()(**inputs).logits)
    assert json.loads((bert_folder / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_saving_again_from_a_folder_keeps_the_tokenizer(bert_folder: Path, spans: DataInfo, tmp_path: Path):
    model = Bert(path=str(bert_folder))
    net = model.build(spans)
    model.save_pretrained_files(net, tmp_path)
    save_file(net.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, report = BertForQuestionAnswering.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == model.tokenizer().get_vocab()


def test_prunable_layers_carry_transformers_names(pair_classes: DataInfo, spans: DataInfo):
    model = Bert(size="tiny")
    names = model.prunable(model.skeleton(pair_classes))
    assert names[:6] == [
        f"bert.encoder.layer.0.{name}"
        for name in (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
        )
    ]
    head = Bert(size="tiny", prune_head=True)
    assert head.prunable(head.skeleton(pair_classes))[len(names) :] == ["bert.pooler.dense", "classifier"]
    assert head.prunable(head.skeleton(spans))[len(names) :] == ["qa_outputs"]


@pytest.mark.parametrize(("size", "layers"), [("base", 12), ("large", 24)])
def test_known_sizes(size: str, layers: int, pair_classes: DataInfo):
    model = Bert(size=size)
    net = model.skeleton(pair_classes)
    assert len(model.prunable(net)) == 6 * layers
    million = sum(net.get_submodule(name).weight.numel() for name in model.prunable(net)) / 1e6
    assert million == pytest.approx({"base": 85, "large": 302}[size], abs=0.1)


def test_attention_is_fused_and_one_class_means_regression(bert_folder: Path):
    info = DataInfo(kind="sequence_classification", num_classes=1, sequence_length=16)
    for model in (Bert(size="tiny"), Bert(path=str(bert_folder))):
        net = model.build(info)
        assert net.config._attn_implementation == "sdpa"
        assert net.classifier.weight.shape == (1, 128)


def test_new_heads_are_one_logged_line(
    bert_folder: Path, spans: DataInfo, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
):
    with caplog.at_level(logging.INFO):
        Bert(path=str(bert_folder)).build(spans)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("sparsefront")] == [
        "newly initialized, because no weights fit: qa_outputs.bias, qa_outputs.weight"
    ]
    assert capfd.readouterr() == ("", "")


def test_trunk_without_prefix_and_pooler_and_in_half_precision_is_loaded_in_fp32(folder: Path, pair_classes: DataInfo):
    full = load_file(folder / "model.safetensors")
    trunk = {
        key.removeprefix("bert."): tensor.half()
        for key, tensor in full.items()
        if key.startswith("bert.") and "pooler" not in key
    }
    save_file(trunk, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, architectures=["BertModel"], dtype="float16")
    net = Bert(path=str(folder)).build(pair_classes)
    key = "bert.encoder.layer.1.output.dense.weight"
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    assert torch.equal(net.state_dict()[key], full[key].half().float())


def test_pytorch_bin_is_read_too(folder: Path, pair_classes: DataInfo):
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    model = Bert(path=str(folder))
    model.check()
    assert torch.equal(model.build(pair_classes).classifier.weight, weights["classifier.weight"])


def test_other_layer_counts_and_shapes_are_rejected(folder: Path, pair_classes: DataInfo):
    change_config(folder, num_hidden_layers=3)
    with pytest.raises(InvalidSetting, match="path=.*missing keys: bert.encoder.layer.2.*and 13 more"):
        Bert(path=str(folder)).build(pair_classes)
    change_config(folder, num_hidden_layers=1)
    with pytest.raises(InvalidSetting, match="unexpected keys: .*encoder.layer.1"):
        Bert(path=str(folder)).build(pair_classes)
    change_config(folder, num_hidden_layers=2, intermediate_size=256)
    with pytest.raises(InvalidSetting, match=r"intermediate.dense.weight \[512, 128\] for \[256, 128\]"):
        Bert(path=str(folder)).build(pair_classes)


def test_damaged_files_are_one_sentence(folder: Path, pair_classes: DataInfo):
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidSetting, match="its weights cannot be read: .") as rejected:
        Bert(path=str(folder)).build(pair_classes)
    assert "\n" not in str(rejected.value)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidSetting, match="its tokenizer cannot be read: ."):
        Bert(path=str(folder)).tokenizer()
    (folder / "config.json").write_text("{")
    with pytest.raises(InvalidSetting, match="its config.json is not JSON"):
        Bert(path=str(folder)).check()


def test_folders_of_other_models_are_rejected_by_type(folder: Path, pair_classes: DataInfo):
    change_config(folder, model_type="roberta")
    model = Bert(path=str(folder))
    for rejected in (model.check, lambda: model.skeleton(pair_classes), lambda: model.build(pair_classes)):
        with pytest.raises(InvalidSetting, match="path=.*type roberta; only type bert is supported"):
            rejected()


def test_incomplete_folders_are_found_by_check(folder: Path, tmp_path: Path):
    with pytest.raises(InvalidSetting, match="path=/no/such: does not exist"):
        Bert(path="/no/such").check()
    with pytest.raises(InvalidSetting, match="must be a folder with config.json"):
        Bert(path=str(tmp_path)).check()
    (folder / "tokenizer.json").rename(folder / "renamed")
    with pytest.raises(InvalidSetting, match="has no tokenizer.json or vocab.txt"):
        Bert(path=str(folder)).check()
    with pytest.raises(InvalidSetting, match="has no tokenizer.json or vocab.txt"):
        Bert(path=str(folder)).tokenizer()
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidSetting, match="has no model.safetensors or"):
        Bert(path=str(folder)).check()


def test_tokenizer_must_not_outgrow_the_embeddings(folder: Path):
    change_config(folder, vocab_size=100)
    with pytest.raises(InvalidSetting, match="8192 tokens and its embedding table 100 rows"):
        Bert(path=str(folder)).tokenizer()


def test_sequences_must_fit_the_positions(bert_folder: Path):
    long = DataInfo(kind="extractive_qa", num_classes=2, sequence_length=513)
    with pytest.raises(InvalidSetting, match="size=tiny: takes at most 512 tokens and the dataset gives up to 513"):
        Bert(size="tiny").skeleton(long)
    with pytest.raises(InvalidSetting, match="path=.*takes at most 512"):
        Bert(path=str(bert_folder)).skeleton(long)


def test_bad_settings_are_rejected_at_once():
    with pytest.raises(InvalidSetting, match="size=huge: must be one of tiny, base, large or null"):
        Bert(size="huge")
    with pytest.raises(InvalidSetting, match="excludes path"):
        Bert(size="tiny", path="somewhere")


def test_trained_tokenizer_fills_the_embedding_table_and_needs_texts(sentences: list[str], pair_classes: DataInfo):
    model = Bert(size="tiny")
    with pytest.raises(ValueError, match="none were given"):
        model.tokenizer()
    tokenizer = model.tokenizer(sentences)
    assert model.tokenizer() is tokenizer
    assert len(tokenizer) == model.skeleton(pair_classes).config.vocab_size


def test_fingerprint_follows_the_files_that_are_read(folder: Path, bert_folder: Path):
    copy, original = Bert(path=str(folder)), Bert(path=str(bert_folder))
    assert copy.fingerprint() == original.fingerprint()
    (folder / "README.md").write_text("changed")
    assert copy.fingerprint() == original.fingerprint()
    change_config(folder, hidden_dropout_prob=0.2)
    assert copy.fingerprint() != original.fingerprint()
    assert Bert(revision="abc").fingerprint() == {"model": "bert", "hub": "bert-base-uncased", "revision": "abc"}


def test_bert_runs_where_a_local_folder_is_called_kernels():
    """transformers looks for a package `kernels`; from the root of this repository it finds our folder of that name."""
    code = """
import torch
from sparsefront.data.base import DataInfo
from sparsefront.models.bert import Bert
model = Bert(size="tiny")
net = model.build(DataInfo(kind="sequence_classification", num_classes=2, sequence_length=16))
inputs = model.tokenizer(["a test", "another test"])(["test"], return_tensors="pt")
print(tuple(net(**inputs).logits.shape))
"""
    assert (ROOT / "kernels").is_dir()
    code = f"import sys; sys.path.insert(1, 'src')\n{code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "(1, 2)"


def test_a_result_names_what_was_loaded(bert_folder: Path, pair_classes: DataInfo, tmp_path: Path):
    """The default hub id says nothing about a folder's weights or random ones; the loaded network speaks for itself."""
    folder = Path(shutil.copytree(bert_folder, tmp_path / "all-MiniLM-L6"))
    model = Bert(path=str(folder))
    recorded = model.settings_used() | model.network_facts(model.build(pair_classes))
    assert model.variant == recorded["path"] == "all-MiniLM-L6" and recorded["name"] is None
    assert (recorded["num_hidden_layers"], recorded["hidden_size"]) == (2, 128)
    assert Bert(size="tiny").settings_used()["name"] is None
    fetched = Bert(name="nreimers/MiniLM-L6-H384-uncased")
    assert fetched.variant == "MiniLM-L6-H384-uncased"
    assert fetched.settings_used()["name"] == "nreimers/MiniLM-L6-H384-uncased"


def test_a_snapshot_of_the_hubs_cache_is_called_by_its_repository(tmp_path: Path):
    snapshot = tmp_path / "models--nreimers--MiniLM-L6-H384-uncased" / "snapshots" / ("0" * 40)
    assert Bert(path=f"{snapshot}/").variant == "MiniLM-L6-H384-uncased"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_are_not_finite_are_named_with_their_file(folder: Path, pair_classes: DataInfo, name: str):
    weights = load_file(folder / "model.safetensors")
    tensor = "bert.encoder.layer.1.attention.self.key.weight"
    weights[tensor][0, :3] = float("nan")
    (folder / "model.safetensors").unlink()
    if name == "model.safetensors":
        save_file(weights, folder / name, metadata={"format": "pt"})
    else:
        torch.save(weights, folder / name)
    expected = rf"path=.*: {re.escape(f'{name} cannot be used: {tensor}')} holds 3 NaN and 0 infinite of 16384 values$"
    with pytest.raises(InvalidSetting, match=expected):
        Bert(path=str(folder)).build(pair_classes)
