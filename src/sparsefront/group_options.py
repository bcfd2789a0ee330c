"""The options of a configuration group: where their files are, and which of them takes a key that the chosen one does not."""

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sparsefront.errors import InvalidSetting, UnknownKey

# old key -> new key that takes the same values
RENAMED_KEYS = {
    "measure.wrappings": "measure.execution_modes",
    "recipe.history": "recipe.save_epoch_weights",
    "recipe.keep_dense": "recipe.ignore",
    "trainer.accumulate": "trainer.accumulate_grad_batches",
}
# old key -> what to type instead, where the values changed too
REPLACED_KEYS = {
    "allocation.min_density": "is allocation.min_density_share now, a share of the target density: what was 0.1 at "
    "sparsity 0.75 is allocation=global_threshold allocation.min_density_share=0.4",
}


def renamed_key(key: str) -> str | None:
    """What to tell a user who typed an old key, in words; None for every other key."""
    if key in RENAMED_KEYS:
        return f"is {RENAMED_KEYS[key]} now"
    return REPLACED_KEYS.get(key)


def searched_folders(sources: Iterable[Any]) -> list[Path]:
    """Those that Hydra searches for options: conf/, `--config-dir`, and folders and packages of `hydra.searchpath`.

    Args:
        sources: Hydra's `runtime.config_sources`.
    """
    folders: list[Path] = []
    for source in sources:
        if source.schema == "file":
            folders.append(Path(source.path))
        elif source.schema == "pkg" and source.path:
            spec = importlib.util.find_spec(source.path.replace("/", "."))
            folders += [Path(place) for place in (spec.submodule_search_locations if spec else None) or ()]
    return folders


def options_of(group: str, folders: Iterable[Path]) -> list[str]:
    """Names of the options of a group, each once."""
    return list(dict.fromkeys(file.stem for folder in folders for file in sorted((folder / group).glob("*.yaml"))))


def say_where(error: UnknownKey, choices: Mapping[str, str], folders: Iterable[Path]) -> InvalidSetting:
    """The same complaint, with what to type where the key was renamed, or belongs to other options of its group.

    Args:
        error: its key is written from the root.
        choices: group -> the name of its option, which does not take the key.
        folders: those that Hydra searches for options.
    """
    if (renamed := renamed_key(error.key)) is not None:
        return InvalidSetting(error.key, error.value, renamed)
    group, _, key = error.key.partition(".")
    chosen, options = choices[group], _options_with(group, key, folders)
    if not options or chosen in options:
        return error
    typed = " or ".join(f"{group}={option}" for option in options)
    return InvalidSetting(error.key, error.value, f"unknown key of {group}={chosen}; choose {typed}, which takes it")


def _options_with(group: str, key: str, folders: Iterable[Path]) -> list[str]:
    """The options whose file holds the key."""
    files = [file for folder in folders for file in sorted((folder / group).glob("*.yaml"))]
    return list(dict.fromkeys(file.stem for file in files if key in OmegaConf.load(file)))
