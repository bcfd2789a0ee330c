"""Pairs of sentences: the vocabulary, batches by tokens, what is held out, and files that cannot be used."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_files import write_pairs

from sparsefront.data import translation
from sparsefront.data.sentence_pairs import TokenBatches
from sparsefront.data.translation import Multi30k
from sparsefront.errors import InvalidSetting
from sparsefront.tasks.causal_lm import IGNORED
from sparsefront.tasks.decoding import BOS, EOS, PAD


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "pairs", val=9)


def opened(settings: Multi30k, tmp_path: Path, **options: Any) -> Any:
    return settings.data_module(**{"batch_size": 8, "seed": 0} | options, cache_dir=tmp_path / "cache")


def test_vocabulary_of_the_training_text(folder: Path, tmp_path: Path) -> None:
    settings = Multi30k(path=str(folder))
    vocabulary = settings.sentences().tokenizer(tmp_path).get_vocab()
    assert any("train" in token for token in vocabulary) and not any(
        "tes" in token or "val" in token for token in vocabulary
    )
    (kept,) = (tmp_path / "vocabularies").glob("*.json")
    before = kept.stat().st_mtime_ns
    assert settings.sentences().tokenizer(tmp_path).get_vocab() == vocabulary and kept.stat().st_mtime_ns == before
    others = [replace(settings, vocabulary=301), replace(settings, source="de", target="en")]
    digests = {other.info.vocabulary_digest for other in (settings, *others)}
    (folder / "train.en").write_text((folder / "train.en").read_text().replace("the", "a"))
    assert len(digests | {Multi30k(path=str(folder)).info.vocabulary_digest}) == 4


def test_batch_of_sources_and_targets(folder: Path, tmp_path: Path) -> None:
    data = opened(Multi30k(path=str(folder)), tmp_path)
    batch = next(iter(data.test_dataloader()))
    sources, targets = data.sentences.pairs("test")
    written = batch["labels"].masked_fill(batch["labels"] == IGNORED, PAD)
    assert data.text(batch["source"]) == sources[:8] and data.text(written) == targets[:8]
    assert data.references("test") == targets
    for source, mask, target, labels in zip(*(batch[key] for key in ("source", "source_mask", "target", "labels"))):
        tokens = labels[labels != IGNORED].tolist()
        assert tokens.index(EOS) == len(tokens) - 1 and target.tolist()[: len(tokens)] == [BOS, *tokens[:-1]]
        assert mask.tolist() == (source != PAD).tolist() and source[mask][-1] == EOS
    again = opened(Multi30k(path=str(folder)), tmp_path)
    again.sentences.pairs = None  # encoded rows are in the cache
    assert torch.equal(next(iter(again.test_dataloader()))["labels"], batch["labels"])


def test_batches_by_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 60, (500,), generator=generator)
    lengths[7] = 200
    batches = TokenBatches(lengths, 128, generator=generator)
    epochs = [list(batches) for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == len(batches) and sorted(sum(epoch, [])) == list(range(500))
        for rows in epoch:
            longest = -(-int(lengths[rows].max()) // 8) * 8
            assert len(rows) * longest <= 128 or rows == [7]
    assert epochs[0] != epochs[1]
    padding = sum(int(lengths[rows].max()) * len(rows) for rows in epochs[0]) / int(lengths.sum())
    assert padding < 1.1


def test_long_pairs(folder: Path, tmp_path: Path) -> None:
    for language in ("en", "de"):
        file = folder / f"train.{language}"
        file.write_text(file.read_text() + "x y z " * 40 + "\n")
    settings = Multi30k(path=str(folder), max_length=40)
    assert len(opened(settings, tmp_path).part("train")) == 40
    (folder / "test.de").write_text((folder / "test.de").read_text().replace("es ist test 3", "x y z " * 40))
    with pytest.raises(InvalidSetting, match=r"dataset.max_length=40: pair 4 of test .* give at least \d+"):
        opened(settings, tmp_path).part("test")
    data = opened(settings, tmp_path)
    data.batch_size, data.evaluate_limit = 3, 2  # the whole first batch
    assert len(data.part("test")) == 3
    data = opened(settings, tmp_path)
    data.batch_size, data.evaluate_limit = 2, 3
    with pytest.raises(InvalidSetting, match=r"pair 4 of test .* it is evaluated: give at least \d+"):
        data.part("test")


def broken(folder: Path, name: str, change: Any) -> None:
    (folder / name).write_bytes(change((folder / name).read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train.de", lambda content: content + b"mehr\n", r"train.en has 40 lines and train.de has 41"),
        ("test.en", lambda content: content.replace(content.split(b"\n")[3], b" \t", 1), r"line 4 of test.en is empty"),
        ("test.de", lambda content: b"\xff" + content, "line 1 is not UTF-8"),
        ("train.en", lambda content: b"", "train.en has 0 lines and train.de has 40"),
    ],
)
def test_files_that_cannot_be_used(name: str, change: Any, said: str, folder: Path, tmp_path: Path) -> None:
    broken(folder, name, change)
    with pytest.raises(InvalidSetting, match=rf"dataset.path=.*{said}") as caught:
        opened(Multi30k(path=str(folder)), tmp_path).setup()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target": "fr"}, r"target=fr: .* has no train file of this language; there are de, en"),
        ({"source": "fr"}, r"source=fr: .* has no train file of this language; there are de, en"),
        ({"target": "en"}, "target=en: is the language of the source too"),
        ({"beam": 0}, "beam=0"),
        ({"length_penalty": -1.0}, "length_penalty=-1"),
        ({"vocabulary": 100}, "vocabulary=100"),
        ({"batch_tokens": 64}, "batch_tokens=64: holds no sentence of max_length=128"),
        ({"path": None, "hub": None}, "path=None: set dataset.path to a folder with train.en, train.de"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises(InvalidSetting, match=said):
        Multi30k(**{"path": str(folder)} | settings).check()


@pytest.mark.parametrize("nested", [True, False])
def test_pairs_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nested: bool) -> None:
    """One column for each language, or one that holds both."""
    from datasets import Dataset

    pairs = [{"de": f"es ist {number} ", "en": f"it is {number}"} for number in range(12)]
    rows = Dataset.from_list([{"translation": pair} for pair in pairs] if nested else pairs)
    asked = []

    def split_of(hub_id: str, **given: Any) -> Dataset:
        asked.append((hub_id, given["config"], given["revision"], given["split"]))
        return rows

    monkeypatch.setattr(translation, "hub_split", split_of)
    monkeypatch.setattr(translation, "hub_split_names", lambda hub_id, **given: ["train", "validation", "test"])
    settings = Multi30k(hub="own/pairs", config="de-en", revision="abc")
    data = opened(settings, tmp_path)
    assert data.references("test")[2] == "es ist 2" and len(data.part("train")) == 12
    assert ("own/pairs", "de-en", "abc", "validation") not in asked and len(data.part("val")) == 12
    assert asked[-1] == ("own/pairs", "de-en", "abc", "validation")
    with pytest.raises(InvalidSetting, match=r"dataset.target=fr: own/pairs has (de, en|en, de)"):
        opened(replace(settings, target="fr"), tmp_path).part("train")
    monkeypatch.setattr(translation, "hub_split_names", lambda hub_id, **given: ["train"])
    with pytest.raises(InvalidSetting, match="hub=own/pairs: has no split test"):
        opened(settings, tmp_path / "other").part("test")
    rows = Dataset.from_list([{"en": "it is", "de": None}, {"en": "it was", "de": "es war"}])
    with pytest.raises(InvalidSetting, match=r"hub=own/pairs: line 1 of train.de is empty \(1 are\)"):
        opened(settings, tmp_path / "untranslated").part("train")
