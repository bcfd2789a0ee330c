"""Small data facts and a small BERT on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sparsefront.data.base import DataInfo
from sparsefront.models.bert import Bert, train_wordpiece

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A small network is pruned, recovered and measured again.",
    "Wächter der Größe: naïve façade, 42 tests!",
    "pruning prunes pruned pruner measurement measuring measured",
] * 5


@pytest.fixture
def images() -> Callable[..., DataInfo]:
    """images(size=..., channels=..., classes=...) -> facts of an image data set."""

    def make(*, size: int = 32, channels: int = 3, classes: int = 10) -> DataInfo:
        return DataInfo(kind="image_classification", num_classes=classes, image_size=size, channels=channels)

    return make


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return SENTENCES


@pytest.fixture(scope="session")
def pair_classes() -> DataInfo:
    return DataInfo(kind="sequence_classification", num_classes=2, sequence_length=64)


@pytest.fixture(scope="session")
def spans() -> DataInfo:
    return DataInfo(kind="extractive_qa", num_classes=2, sequence_length=64)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory, pair_classes: DataInfo) -> Path:
    """A tiny BERT with two classes, as transformers stores it. Tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    model = Bert(size="tiny")
    net = model.build(pair_classes)
    model.tokenizer(SENTENCES)
    model.save_pretrained_files(net, folder)
    save_file(net.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., tuple[Path, torch.nn.Module]]:
    """saved("RobertaModel", folder, **config) -> folder of a tiny network of transformers and its tokenizer, and the network."""

    def make(class_name: str, folder: str = "saved", **config: object) -> tuple[Path, torch.nn.Module]:
        import transformers

        kind = class_name.removesuffix("Model").removesuffix("ForSequenceClassification")
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        places = {"vocab_size": 200, "max_position_embeddings": 40, "pad_token_id": 0}
        torch.manual_seed(0)
        net = getattr(transformers, class_name)(getattr(transformers, f"{kind}Config")(**sizes | places | config))
        net.save_pretrained(tmp_path / folder)
        train_wordpiece(["red green blue"], vocabulary_size=100, max_length=32).save_pretrained(tmp_path / folder)
        return tmp_path / folder, net

    return make
