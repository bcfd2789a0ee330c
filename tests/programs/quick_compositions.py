"""Compositions of `conf/` that cost little: reading YAML takes most of one, and many tests ask for the same.

Copies are made by pickle, which takes a sixth of the time of `copy.deepcopy`.
"""

import functools
import io
import pickle
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import DefaultsList
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

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return pickle.dumps(compose("config", overrides=["logger=none", *overrides], return_hydra_config=True))


def merge_equal_choices_once() -> None:
    """From now on Hydra merges the files of equally chosen options once; values are set on a copy, each time.

    Where other folders than `conf/` are searched, or a group of Hydra's own is chosen, nothing is kept.
    """
    find_defaults = config_loader_impl.create_defaults_list
    merge = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list
    found: dict[Hashable, DefaultsList] = {}
    merged: dict[str, bytes] = {}

    def constant(repo: IConfigRepository) -> bool:
        return {source.path for source in repo.get_sources()} == {"hydra.conf", str(CONF), ""}

    def find_once(repo, config_name, overrides_list, **how):
        words = [text for text in overrides_list if not text.is_sweep_override()]
        chosen = [text for text in words if repo.group_exists(text.key_or_group) and not isinstance(text.value(), dict)]
        if not constant(repo) or any("hydra" in text.key_or_group for text in chosen):
            return find_defaults(repo, config_name, overrides_list, **how)
        key = config_name, tuple(text.input_line for text in chosen), tuple(sorted(how.items()))
        if key not in found:
            found[key] = find_defaults(repo, config_name, overrides_list, **how)
        values = [text for text in words if not any(text is other for other in chosen)]
        return replace(found[key], config_overrides=values)

    def merge_once(loader, defaults, repo) -> DictConfig:
        plugins = ("hydra/launcher/", "hydra/sweeper/")  # whose schemas a test may register
        of_plugins = [part for part in defaults if str(part.config_path).startswith(plugins)]
        if not constant(repo) or any(not part.config_path.endswith("/basic") for part in of_plugins):
            return merge(loader, defaults, repo)
        key = str(defaults)
        if key not in merged:
            merged[key] = pickle.dumps(merge(loader, defaults, repo))
        return pickle.loads(merged[key])

    config_loader_impl.create_defaults_list = find_once
    config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list = merge_once
