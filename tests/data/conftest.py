"""Tiny copies of every data set, and a tokenizer that needs no download."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_files import (
    WORDS,
    write_cifar,
    write_glue,
    write_imagenet,
    write_imdb,
    write_pairs,
    write_squad,
    write_text_files,
    write_tiny_imagenet,
)

from experiments.language_models.tiny import make_wikitext
from sparsefront.data import download


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from sparsefront.models.bert import train_wordpiece

    return train_wordpiece(
        [" ".join(WORDS), "abcdefghijklmnopqrstuvwxyz 0123456789 . , ?"], vocabulary_size=300, max_length=512
    )


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    """tiny(name, **settings) -> the settings of a data set, its YAML read by Hydra, its files made in `tmp_path`."""
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    conf = Path(__file__).resolve().parents[2] / "conf" / "dataset"

    def make(name: str, **settings: Any) -> Any:
        config = OmegaConf.to_container(OmegaConf.load(conf / f"{name}.yaml"))
        config["num_workers"] = 0
        if name == "cifar10":
            config["path"] = str(write_cifar(tmp_path / "cifar10"))
        elif name == "tiny_imagenet":
            config |= {"path": str(write_tiny_imagenet(tmp_path / name)), "complete": False, "valid_fraction": 0.1}
        elif name == "imdb":
            config |= {"path": str(write_imdb(tmp_path / name)), "complete": False}
        elif name in ("imagenet", "imagefolder"):
            config |= {"path": str(tmp_path / "imagenet"), "image_size": 32, "valid_fraction": 0.25}
            if not (tmp_path / "imagenet").exists():
                write_imagenet(tmp_path / "imagenet")
        elif name == "text":
            config["path"] = str(write_text_files(tmp_path / "text"))
        elif name == "glue":
            config["path"] = str(write_glue(tmp_path / "glue", settings.get("task", config["task"])))
        elif name == "squad":
            config |= {"path": str(write_squad(tmp_path / "squad")), "max_length": 40, "stride": 8}
        elif name == "wikitext2":
            config |= {"path": str(make_wikitext(tmp_path / "wikitext2")), "sequence_length": 16, "valid_fraction": 0.4}
        elif "vocabulary" in config:
            languages = {key: config[key] for key in ("source", "target")}
            config |= {"path": str(write_pairs(tmp_path / name, **languages)), "valid_fraction": 0.2}
        return instantiate(config | settings, _convert_="all")

    return make


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for the hub that gives `rows(split)`; `asked` is what was, and nothing answers where not `reachable`."""
    import datasets
    from huggingface_hub import constants

    hub = SimpleNamespace(asked=[], rows=None, reachable=True)

    def load(name: str, config: str | None, *, revision: str, split: str) -> datasets.Dataset:
        hub.asked.append((name, config, revision, split))
        return hub.rows(split)

    def answer(*_: object, timeout: float) -> Any:
        if not hub.reachable:
            raise OSError("no route")
        return open("/dev/null")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(download.urllib.request, "urlopen", answer)
    return hub


@pytest.fixture
def opened(tmp_path: Path, tokenizer: Any) -> Any:
    """opened(settings, seed=0, batch_size=8) -> the data module."""

    def open_data(settings: Any, *, seed: int = 0, batch_size: int = 8) -> Any:
        pairs = settings.info.kind == "translation"  # they learn a vocabulary of their own
        own = None if pairs else lambda texts: tokenizer
        return settings.data_module(batch_size=batch_size, seed=seed, cache_dir=tmp_path / "cache", tokenizer_from=own)

    return open_data
