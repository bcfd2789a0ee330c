"""Compositions of `conf/` that cost little: reading YAML takes most of one, and many tests ask for the same."""

import copy
import functools
import io
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

CONF = Path(__file__).resolve().parents[2] / "conf"


def parse_each_content_once() -> None:
    """From now on `OmegaConf.load`, which Hydra reads its files by, gives a copy of what the same text gave before."""
    load = OmegaConf.load

    @functools.cache
    def parsed(text: str | bytes):
        return load(io.StringIO(text) if isinstance(text, str) else io.BytesIO(text))

    def load_copy(file):
        if not hasattr(file, "read"):
            with open(file, encoding="utf-8") as opened:
                return load_copy(opened)
        start = file.tell()
        try:
            return copy.deepcopy(parsed(file.read()))
        except yaml.YAMLError:
            file.seek(start)
            return load(file)  # whose message names the file

    OmegaConf.load = staticmethod(load_copy)


def composed_in(results: Path, cache: Path, overrides: tuple[str, ...]) -> DictConfig:
    """What `results_dir=RESULTS cache_dir=CACHE logger=none` and the overrides after them compose, with Hydra's settings."""
    config = copy.deepcopy(_composition(overrides))
    places = {"results_dir": str(results), "cache_dir": str(cache)}
    with open_dict(config):
        for place, (key, folder) in enumerate(places.items()):
            config.hydra.overrides.task.insert(place, f"{key}={folder}")
            if not any(text.startswith(f"{key}=") for text in overrides):
                config[key] = folder
    return config


@functools.cache
def _composition(overrides: tuple[str, ...]) -> DictConfig:
    import sparsefront.config.schema  # noqa: F401  (registers the schema and the resolvers)

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=["logger=none", *overrides], return_hydra_config=True)
