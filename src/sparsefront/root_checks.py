"""The checks of the root keys, which belong to no group: their names, types and values."""

import tempfile
from dataclasses import fields
from pathlib import Path

from omegaconf import DictConfig

from sparsefront.config import CONTROLS, STAGES, Config
from sparsefront.errors import InvalidSetting
from sparsefront.report.renamed_fields import new_name
from sparsefront.report.result import result_fields
from sparsefront.search.objective import field_of
from sparsefront.setting_types import check_root_types


def check_root(config: DictConfig) -> None:
    """Check the names, types and values of the root keys that no group builds.

    Raises:
        InvalidSetting: the first key that cannot work: its value, what is allowed.
    """
    known = [f.name for f in fields(Config)]
    for key in config:
        if key not in known:
            raise InvalidSetting(str(key), config[key], f"unknown key; the root takes {', '.join(known)}")
    check_root_types(config)
    names = [field.name for field in result_fields()]
    for name in map(field_of, config.optimize):
        if (renamed := new_name(name)) is not None:
            raise InvalidSetting("optimize", name, f"is {renamed} now")
        if name not in names:
            raise InvalidSetting("optimize", name, f"is not a field of the result; there are {', '.join(names)}")
    if config.control is not None and config.control not in CONTROLS:
        raise InvalidSetting("control", config.control, f"is one of {', '.join(CONTROLS)}, or null for none")
    if "swap" in config.stages and "measure" not in config.stages:
        allowed = "swap chooses kernels for what measure runs: add measure, or leave swap out"
        raise InvalidSetting("stages", f"[{','.join(config.stages)}]", f"{allowed}; there are {', '.join(STAGES)}")
    if not config.cache_dir:
        raise InvalidSetting("cache_dir", "", "names no folder; the folder you stand in is .")
    cache = Path(config.cache_dir)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        raise InvalidSetting(
            "cache_dir", cache, f"cannot be written ({error.strerror}); name another folder"
        ) from error
