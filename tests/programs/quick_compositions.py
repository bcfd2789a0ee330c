"""Compositions of `conf/` that cost little: reading YAML takes most of one, and many tests ask for the same.

Copies are made by pickle, which takes a sixth of the time of `copy.deepcopy`.
"""

import functools
import io
import pickle
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from omegaconf import DictConfig, OmegaConf, open_dict

CONF = Path(__file__).resolve().parents[2] / "conf"


def parse_each_content_once() -> None:
    """From now on `OmegaConf.load`, which Hydra reads its files by, gives a copy of what the same text gave before."""
    load = OmegaConf.load

    @functools.cache
    def parsed(text: str | bytes) -> bytes:
        return pickle.dumps(load(io.StringIO(text) if isinstance(text, str) else io.BytesIO(text)))

    def load_copy(file):
        if not hasattr(file, "read"):
            with open(file, encoding="utf-8") as opened:
                return load_copy(opened)
        start = file.tell()
        try:
            return pickle.loads(parsed(file.read()))
        except yaml.YAMLError:
            file.seek(start)
            return load(file)  # whose message names the file

    OmegaConf.load = staticmethod(load_copy)


def composed_in(results: Path, cache: Path, overrides: tuple[str, ...]) -> DictConfig:
    """What `results_dir=RESULTS cache_dir=CACHE logger=none` and the overrides after them compose, with Hydra's settings."""
    config = composition(overrides)
    places = {"results_dir": str(results), "cache_dir": str(cache)}
    with open_dict(config):
        for place, (key, folder) in enumerate(places.items()):
            config.hydra.overrides.task.insert(place, f"{key}={folder}")
            if not any(text.startswith(f"{key}=") for text in overrides):
                config[key] = folder
    return config


def composition(overrides: tuple[str, ...]) -> DictConfig:
    """What `logger=none` and the overrides after it compose, with Hydra's settings."""
    return pickle.loads(_composed(overrides))


@functools.cache
def _composed(overrides: tuple[str, ...]) -> bytes:
    import sparsefront.config.schema  # noqa: F401  (registers the schema and the resolvers)

    with ExitStack() as patched:
        if not any("hydra.searchpath" in text for text in overrides):  # whose files come and go
            merging = config_loader_impl.ConfigLoaderImpl
            patched.enter_context(patch.object(config_loader_impl, "create_defaults_list", _defaults_list))
            patched.enter_context(patch.object(merging, "_compose_config_from_defaults_list", _merged))
        patched.enter_context(initialize_config_dir(str(CONF), version_base="1.3"))
        return pickle.dumps(compose("config", overrides=["logger=none", *overrides], return_hydra_config=True))


# What is composed before values are set depends on the chosen options alone: the same ones are merged once.

_real_defaults_list = config_loader_impl.create_defaults_list
_real_merged = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list
_defaults_lists: dict = {}
_merged_configs: dict[str, bytes] = {}


def _defaults_list(repo, config_name, overrides_list, **how):
    chosen = [text for text in overrides_list if repo.group_exists(text.key_or_group)]
    chosen = [text for text in chosen if not isinstance(text.value(), dict)]
    key = tuple(text.input_line for text in chosen)
    if key not in _defaults_lists:
        _defaults_lists[key] = _real_defaults_list(repo, config_name, overrides_list, **how)
    values = [text for text in overrides_list if not any(text is other for other in chosen)]
    return replace(_defaults_lists[key], config_overrides=values)


def _merged(loader, defaults, repo) -> DictConfig:
    key = str(defaults)
    if key not in _merged_configs:
        _merged_configs[key] = pickle.dumps(_real_merged(loader, defaults, repo))
    return pickle.loads(_merged_configs[key])
