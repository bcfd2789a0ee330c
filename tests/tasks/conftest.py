"""Tiny networks with the forward signatures of real ones, and data for them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

CONTEXTS = [
    "the red house stands on a hill near the old mill and the river runs by it",
    "in 1867 a café was opened in Köln by two sisters , who sold it after 12 years",
    "green apples are sour , yellow ones are sweet and brown ones are best left alone",
]
ANSWERS = [("a hill", "the river"), ("1867", "two sisters"), ("sour", "brown ones")]


class TinyImageNet(nn.Module):
    """Logits of 10 classes from one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Sgd:
    """The optimizer that a task asks for."""

    def build(self, net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=0.1)


@pytest.fixture
def optimization() -> Sgd:
    return Sgd()


@pytest.fixture
def tiny_image_net() -> TinyImageNet:
    return TinyImageNet()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from sparsefront.models.bert import train_wordpiece

    return train_wordpiece(CONTEXTS, vocabulary_size=200, max_length=64)


@pytest.fixture
def tiny_bert() -> Any:
    """tiny_bert(class_name, **settings) -> an untrained transformers network of one layer, in eval mode."""

    def make(class_name: str, **settings: Any) -> nn.Module:
        import transformers

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        config = transformers.BertConfig(vocab_size=200, max_position_embeddings=64, **sizes, **settings)
        return getattr(transformers, class_name)(config).eval()

    return make


@pytest.fixture
def squad(tmp_path: Path, tokenizer: Any) -> Any:
    """Data of SQuAD's form with three paragraphs and two questions each; dev is the same, annotated twice."""
    from sparsefront.data.squad import Squad

    for part, times in (("train", 1), ("dev", 2)):
        paragraphs = []
        for number, (context, texts) in enumerate(zip(CONTEXTS, ANSWERS, strict=True)):
            asked = [
                {
                    "id": f"{part}-{number}-{text}",
                    "question": "what is it ?",
                    "answers": [{"text": text, "answer_start": context.index(text)}] * times,
                }
                for text in texts
            ]
            paragraphs.append({"context": context, "qas": asked})
        file = tmp_path / "squad" / f"{part}-v1.1.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"version": "1.1", "data": [{"title": "all", "paragraphs": paragraphs}]}))
    settings = Squad(path=str(tmp_path / "squad"), max_length=32, stride=8, valid_fraction=0.3)
    return settings.data_module(
        batch_size=4, seed=0, cache_dir=tmp_path / "cache", tokenizer_from=lambda texts: tokenizer
    )
