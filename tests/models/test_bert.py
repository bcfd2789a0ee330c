"""BERT from folders and of known sizes: strict where transformers is lenient, quiet where it is loud.

Vocabularies learnt from texts.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_files import write_glue
from transformers import AutoTokenizer, BertForSequenceClassification

from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.models.bert import Bert, train_wordpiece


@pytest.fixture
def folder(bert_folder: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(bert_folder, tmp_path / "bert"))


def change_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_folder_for_from_pretrained(bert_folder: Path, pair_classes: DataInfo, sentences: list[str]):
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


def test_names_of_prunable_layers(pair_classes: DataInfo, spans: DataInfo):
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


def test_row_names_the_loaded_network(run, bert_folder: Path, tmp_path: Path):
    """And not the default of a setting that had no say."""
    data = [
        "dataset=glue",
        f"dataset.path={write_glue(tmp_path, 'sst2')}",
        "dataset.max_length=32",
        "recipe.batch_size=4",
    ]
    row = run("trainer=cpu", "measure.device=cpu", "model=bert", f"model.path={bert_folder}", *data, "kernel=none")
    assert "bert-base" not in row.to_json() and str(bert_folder.parent) not in row.to_json()
    assert row.choice.model_variant == row.choice.model_parameters["path"] == bert_folder.name
    assert row.choice.model_parameters["num_hidden_layers"] == 2


def test_other_shapes_are_rejected(folder: Path, pair_classes: DataInfo):
    change_config(folder, num_hidden_layers=3)
    with pytest.raises(InvalidSetting, match="path=.*missing keys: bert.encoder.layer.2.*and 13 more"):
        Bert(path=str(folder)).build(pair_classes)
    change_config(folder, num_hidden_layers=1)
    with pytest.raises(InvalidSetting, match="unexpected keys: .*encoder.layer.1"):
        Bert(path=str(folder)).build(pair_classes)
    change_config(folder, num_hidden_layers=2, intermediate_size=256)
    with pytest.raises(InvalidSetting, match=r"intermediate.dense.weight \[512, 128\] for \[256, 128\]"):
        Bert(path=str(folder)).build(pair_classes)


def test_vocabulary_of_texts_in_any_order(sentences: list[str]):
    texts = [*sentences, "ties tie tied tier", "zebra yak xylophone", "un der ne ath"]
    first = train_wordpiece(texts, vocabulary_size=150, max_length=32).get_vocab()
    for _ in range(4):
        texts = [*texts[3:], *texts[:3]]
        assert train_wordpiece(texts, vocabulary_size=150, max_length=32).get_vocab() == first


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


def test_incomplete_folders(folder: Path, tmp_path: Path):
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
