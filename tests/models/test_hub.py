"""Models by hub id: the cache first, and one clear message where the hub cannot help."""

import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import HfApi, constants

from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.models.bert import Bert


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty hub cache, and no network."""

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    return tmp_path


def store(cache: Path, name: str, folder: Path) -> Path:
    """Lay a folder into the cache as the hub client does."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return Path(shutil.copytree(folder, repository / "snapshots" / ("0" * 40)))


def test_unreachable_hub_names_its_key(cache: Path, pair_classes: DataInfo):
    model = Bert()
    model.check()
    message = "name=bert-base-uncased: is not cached and .* hub cannot be read .*set model.path to a local folder"
    for read in (lambda: model.skeleton(pair_classes), lambda: model.build(pair_classes), model.tokenizer):
        with pytest.raises(InvalidSetting, match=message):
            read()


def test_cached_model_needs_no_network(cache: Path, bert_folder: Path, pair_classes: DataInfo):
    store(cache, "someone/small", bert_folder)
    model, local = Bert(name="someone/small"), Bert(path=str(bert_folder))
    assert torch.equal(model.build(pair_classes).classifier.weight, local.build(pair_classes).classifier.weight)
    assert model.tokenizer().get_vocab() == local.tokenizer().get_vocab()
    assert model.skeleton(pair_classes).config.hidden_size == 128


def test_weights_are_keyed_by_commit(cache: Path, bert_folder: Path, pair_classes: DataInfo):
    """Also where no hub answers; a branch that moves later does not change what this run loads."""
    snapshot = store(cache, "someone/small", bert_folder)
    model = Bert(name="someone/small").at_commit()
    assert model.revision == snapshot.name == model.fingerprint()["revision"]
    refs = snapshot.parents[1] / "refs" / "main"
    refs.write_text("1" * 40)
    shutil.copytree(snapshot, snapshot.with_name("1" * 40))
    snapshot.joinpath("config.json").write_text(snapshot.joinpath("config.json").read_text().replace("128", "256"))
    assert model.skeleton(pair_classes).config.hidden_size == 256, "of the commit, not of the branch"
    assert Bert(name="someone/small").at_commit().fingerprint() != model.fingerprint()
    assert model.at_commit() == model
