"""The options of a configuration group: which of them takes a key that the chosen one does not."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from sparsefront.errors import InvalidSetting, UnknownKey
from sparsefront.renamed_keys import renamed_key


def say_where(error: UnknownKey, chosen: str) -> InvalidSetting:
    """The same complaint, with what to type where the key was renamed, or belongs to other options of its group.

    Args:
        error: its key is written from the root.
        chosen: name of the option that does not take the key.
    """
    if (renamed := renamed_key(error.key)) is not None:
        return InvalidSetting(error.key, error.value, renamed)
    group, _, key = error.key.partition(".")
    options = _options_with(group, key)
    if not options or chosen in options:
        return error
    typed = " or ".join(f"{group}={option}" for option in options)
    return InvalidSetting(error.key, error.value, f"unknown key of {group}={chosen}; choose {typed}, which takes it")


def _options_with(group: str, key: str) -> list[str]:
    """The options, of every folder that Hydra searches, whose file holds the key."""
    sources = HydraConfig.get().runtime.config_sources
    folders = [Path(source.path) / group for source in sources if source.schema == "file"]
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    return list(dict.fromkeys(file.stem for file in files if key in OmegaConf.load(file)))
