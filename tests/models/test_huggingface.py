"""Any text encoder of transformers, from a folder."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_files import write_glue
from torch import Tensor

from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.export.checkpoint import write_export
from sparsefront.models.bert import Bert
from sparsefront.models.huggingface import HuggingFace

SENTENCES = DataInfo(kind="sequence_classification", num_classes=3, sequence_length=16)
QUESTIONS = DataInfo(kind="extractive_qa", num_classes=2, sequence_length=16)


@pytest.fixture(scope="session")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder without token types, without a pooler, and with other names than BERT's."""
    from transformers import DistilBertConfig, DistilBertModel

    from sparsefront.models.bert import train_wordpiece

    folder = tmp_path_factory.mktemp("distilbert")
    config = DistilBertConfig(vocab_size=200, dim=64, n_layers=2, n_heads=2, hidden_dim=128, max_position_embeddings=40)
    DistilBertModel(config).save_pretrained(folder)
    train_wordpiece(["red green blue", "abcdefghij"], vocabulary_size=100, max_length=32).save_pretrained(folder)
    return folder


def test_transformers_loads_an_export(distilbert: Path, tmp_path: Path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = HuggingFace(path=str(distilbert))
    net = model.build(SENTENCES)
    model.save_pretrained_files(net, tmp_path)
    save_file(net.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in net.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path)("red").input_ids == model.tokenizer()("red").input_ids


def test_what_cannot_work_is_refused(distilbert: Path, tmp_path: Path):
    with pytest.raises(InvalidSetting, match="path=None: names the folder of an encoder"):
        HuggingFace().check()
    with pytest.raises(InvalidSetting, match="takes at most 32 tokens and the dataset gives up to 48"):
        HuggingFace(path=str(distilbert)).skeleton(DataInfo(kind="extractive_qa", num_classes=2, sequence_length=48))
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "config.json").write_text('{"model_type": "no_such"}')
    with pytest.raises(InvalidSetting, match="its config.json cannot be used"):
        HuggingFace(path=str(tmp_path)).skeleton(SENTENCES)


def test_a_run(run, distilbert: Path, tmp_path: Path):
    row = run(
        "model=huggingface",
        f"model.path={distilbert}",
        "dataset=glue",
        f"dataset.path={write_glue(tmp_path, 'sst2')}",
        "recipe=default",
        "dataset.max_length=16",
        "pattern=n_m",
        "sparsity=0.5",
        "trainer=cpu",
        "measure.device=cpu",
        "model.pooling=mean",
    )
    assert row.choice.model_parameters["model_type"] == "distilbert"
    assert row.sparsity.sparsity_achieved == 0.5 and row.quality.sparse == pytest.approx(row.quality.masked, abs=1e-3)


@pytest.mark.parametrize("kind", ["NomicBert", "MPNet", "Bert"])
def test_mean_pooling_ignores_padding(saved: Callable, tmp_path: Path, kind: str):
    import transformers

    from sparsefront.tasks.base import with_square_mask

    folder, original = saved(f"{kind}Model")
    model = HuggingFace(path=str(folder), pooling="mean")
    net = model.build(SENTENCES).eval()
    ids = torch.tensor([[5, 7, 9, 0], [5, 7, 9, 11]])
    inputs = with_square_mask({"input_ids": ids, "attention_mask": (ids > 0).long()}, net)
    with torch.inference_mode():
        logits = net(**inputs).logits
        states = original.eval()(ids, attention_mask=(ids > 0).long()).last_hidden_state
        means = torch.stack([states[0, :3].mean(0), states[1].mean(0)])
        torch.testing.assert_close(logits, net.classifier(means))
        torch.testing.assert_close(net(ids[1:]).logits, logits[1:])
    assert model.prunable(net) == model.prunable(model.skeleton(SENTENCES)) and "classifier" not in model.prunable(net)
    layer = model.prunable(net)[0]
    write_export(
        tmp_path,
        net,
        {layer: torch.ones_like(net.get_submodule(layer).weight, dtype=torch.bool)},
        pattern=None,
        sparsity=0.0,
    )
    assert model.architecture(SENTENCES, tmp_path).load_state_dict(load_file(tmp_path / "model.safetensors"))
    model.save_pretrained_files(net, tmp_path)
    opened = transformers.AutoModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(opened(ids, attention_mask=(ids > 0).long()).last_hidden_state, states)
    with pytest.raises(InvalidSetting, match="^pooling=mean: is of whole texts"):
        model.skeleton(QUESTIONS)


NAMES = ("entailment", "neutral", "contradiction")


@pytest.fixture
def classifier(saved: Callable) -> Callable[..., Path]:
    """classifier(names, kind=...) -> folder of one network whose outputs have this order of names."""

    def make(names: tuple[str, ...], *, kind: str = "Bert") -> Path:
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        folder, net = saved(f"{kind}ForSequenceClassification", "-".join((kind, *names)), num_hidden_layers=1, **labels)
        last = getattr(net.classifier, "out_proj", net.classifier)
        rows = [NAMES.index(name.lower()) for name in names]
        with torch.no_grad():
            last.bias.copy_(torch.arange(3.0))
            last.weight.copy_(last.weight[rows].clone()), last.bias.copy_(last.bias[rows].clone())
        net.save_pretrained(folder)
        return folder

    return make


def named(*names: str) -> DataInfo:
    return DataInfo("sequence_classification", len(names), sequence_length=16, class_names=names)


def answer(net: torch.nn.Module) -> Tensor:
    with torch.inference_mode():
        return net.eval()(input_ids=torch.tensor([[5, 7, 9, 11]]), attention_mask=torch.ones(1, 4).long()).logits


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
@pytest.mark.parametrize(("spelled", "order"), [(str, (2, 1, 0)), (str.upper, (1, 2, 0)), (str.capitalize, (1, 0, 2))])
def test_classes_are_joined_by_name(classifier, tmp_path: Path, kind, spelled, order):
    """The same network with its outputs in another order answers alike, and the export names the data's order."""
    same = classifier(NAMES, kind=kind)
    other = classifier(tuple(spelled(NAMES[i]) for i in order), kind=kind)
    models = {"Bert": (HuggingFace, Bert), "Roberta": (HuggingFace,)}[kind]
    for model in models:
        nets = [model(path=str(folder)).build(named(*NAMES)) for folder in (same, other)]
        torch.testing.assert_close(answer(nets[0]), answer(nets[1]), rtol=0, atol=0)
        model(path=str(other)).save_pretrained_files(nets[1], tmp_path / "exported")
        config = json.loads((tmp_path / "exported" / "config.json").read_text())
        assert config["id2label"] == {str(i): name for i, name in enumerate(NAMES)}
        assert config["label2id"] == {name: i for i, name in enumerate(NAMES)}


def test_conv1d_of_gpt2_is_prunable(tmp_path: Path):
    """Weights are read and written as transformers has them, [K, N]."""
    from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2Model

    from sparsefront.models.bert import train_wordpiece

    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    original = GPT2Model(GPT2Config(vocab_size=200, n_positions=40, n_embd=16, n_layer=2, n_head=2, **ends))
    original.save_pretrained(tmp_path / "gpt2")
    train_wordpiece(["red green blue"], vocabulary_size=100, max_length=32).save_pretrained(tmp_path / "gpt2")
    model = HuggingFace(path=str(tmp_path / "gpt2"))
    net = model.build(SENTENCES)
    layers = model.prunable(model.skeleton(SENTENCES))
    assert layers == model.prunable(net) and len(layers) == 2 * 4
    weight, stored = net.transformer.h[0].attn.c_attn.weight, original.h[0].attn.c_attn.weight
    assert weight.shape == (48, 16) and torch.equal(weight.t(), stored)
    write_export(tmp_path, net, {layers[0]: torch.ones_like(weight, dtype=torch.bool)}, pattern=None, sparsity=0.0)
    assert model.architecture(SENTENCES, tmp_path).load_state_dict(load_file(tmp_path / "model.safetensors"))
    opened = GPT2ForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(opened.transformer.h[0].attn.c_attn.weight, stored)


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def name_in_index(folder: Path, shard: str) -> None:
    weights = folder / "model.safetensors"
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(load_file(weights), shard)})
    )
    weights.rename(folder / shard)


def add_pipe(folder: Path) -> None:
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    os.mkfifo(folder / "special_tokens_map.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: name_in_index(folder, "../m.safetensors"), "names '../m.safetensors', which is no file in"),
        (lambda folder: edit_config(folder, hidden_act="none"), "its config.json cannot be used: KeyError"),
        (lambda folder: edit_config(folder, hidden_size="32"), "its config.json cannot be used: .*hidden_size"),
        (lambda folder: edit_config(folder, num_hidden_layers=10**9), "num_hidden_layers=1000000000, and 4096 layers"),
        (lambda folder: edit_config(folder, model_type=["bert"]), "its config.json cannot be used: transformers knows"),
        (add_pipe, "its special_tokens_map.json is no file"),
    ],
    ids=["outside", "activation", "size", "layers", "type", "pipe"],
)
def test_odd_folders_are_one_line(saved: Callable, change: Callable, message: str):
    folder, _ = saved("RobertaModel")
    change(folder)
    model = HuggingFace(path=str(folder))
    with pytest.raises(InvalidSetting, match=message) as refused:
        model.check()
        model.skeleton(SENTENCES)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
@pytest.mark.parametrize("name", ["kernels-community/some", "flash_attention_2", ["eager"]])
def test_attention_of_a_folder_is_ignored(saved: Callable, key: str, name: object):
    """transformers would load code from the hub that a folder's config.json names."""
    folder, _ = saved("RobertaModel")
    edit_config(folder, **{key: name})
    assert HuggingFace(path=str(folder)).build(SENTENCES).config._attn_implementation == "sdpa"
