"""What the pipeline relies on, for every YAML of group `model`."""

import atexit
import json
import pickle
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from tiny_translators import make_translator

from experiments.language_models.tiny import make_llama
from sparsefront.data.base import DataInfo
from sparsefront.models.base import Model
from sparsefront.models.bert import Bert

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "model").glob("*.yaml"))
PRUNABLE = {
    "bert": 6 * 2,
    "huggingface": 6 * 2,
    "huggingface_lm": 7 * 2,
    "huggingface_mt": 6 * 2 + 10 * 2,
    "lstm_nmt": 15,
    "resnet50": 52,
    "timm": 12 * 4,
    "torchvision": 19,
    "transformer_mt": 16,
    "vgg16": 12,
    "vit": 6 * 12,
    "vit_small": 6 * 4,
}
HEAD = dict.fromkeys(("huggingface_lm", "huggingface_mt", "lstm_nmt", "resnet50", "timm", "torchvision", "vgg16"), 1)
HEAD |= {"bert": 2, "huggingface": 2, "vit": 1, "vit_small": 1}


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def saved(name: str) -> str:
    """A folder as `save_pretrained` writes it: the encoder without a head, which is drawn then; the others with one."""
    if name == "huggingface_lm":
        return str(make_llama(new_folder(), hidden=16, tied=False))
    if name == "huggingface_mt":
        return str(make_translator(new_folder(), "bart", tie_word_embeddings=False))
    folder, bert = new_folder(), Bert(size="tiny")
    bert.tokenizer(["red green blue"])
    net = bert.build(DataInfo(kind="sequence_classification", num_classes=7, sequence_length=16))
    bert.save_pretrained_files(net, folder)
    net.bert.save_pretrained(folder)
    return str(folder)


def smaller(name: str) -> dict[str, object]:
    """What makes a model of this YAML quick to build."""
    if name.startswith("huggingface"):
        return {"path": saved(name)}
    tiny = {"size": "tiny"}
    return {"bert": tiny, "lstm_nmt": {"width": 16}, "transformer_mt": tiny, "vgg16": {"small_images": True}}.get(
        name, {}
    )


def settings(file: Path, **changes: object) -> Model:
    return instantiate(OmegaConf.load(file), **smaller(file.stem), **changes, _convert_="all")


def facts(model: Model) -> DataInfo:
    if "image_classification" in model.kinds:
        return DataInfo(kind="image_classification", num_classes=7, image_size=32, channels=3)
    if "causal_lm" in model.kinds:
        return DataInfo(kind="causal_lm", num_classes=0, sequence_length=16)
    if "translation" in model.kinds:
        return DataInfo(kind="translation", num_classes=0, sequence_length=16, vocabulary=300)
    return DataInfo(kind="sequence_classification", num_classes=7, sequence_length=16)


every_model = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@every_model
def test_skeleton_is_the_built_network(file: Path):
    """The same layers and shapes, without random numbers; what is prunable is the body, and the head on demand."""
    model = settings(file)
    model.check()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    skeleton = model.skeleton(facts(model))
    assert torch.equal(torch.get_rng_state(), state)
    net = model.build(facts(model))
    shapes = ({key: value.shape for key, value in each.state_dict().items()} for each in (skeleton, net))
    assert next(shapes) == next(shapes)
    assert all(tensor.device.type == "meta" for tensor in (*skeleton.parameters(), *skeleton.buffers()))
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    assert all(module.training for module in net.modules())
    body = model.prunable(net)
    assert model.prunable(skeleton) == body and len(body) == len(set(body)) == PRUNABLE[file.stem]
    assert json.loads(json.dumps(model.fingerprint())) == model.fingerprint()
    assert pickle.loads(pickle.dumps(model)) == model
    if hasattr(model, "prune_head"):
        with_head = settings(file, prune_head=True)
        assert with_head.fingerprint() == model.fingerprint()
        layers = with_head.prunable(skeleton)
        assert layers[: len(body)] == body and len(layers) == len(body) + HEAD[file.stem]


@every_model
def test_export_loads_without_its_checkpoint(file: Path, tmp_path: Path):
    model = settings(file)
    net = model.build(facts(model))
    model.save_pretrained_files(net, tmp_path)
    gone = replace(model, path=str(tmp_path / "gone"), **({"size": None} if file.stem == "bert" else {}))
    again = gone.architecture(facts(model), tmp_path)
    again.load_state_dict(net.state_dict())
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in net.state_dict().items())
    assert all(module.training for module in again.modules())
    assert gone.prunable(again) == model.prunable(net)
