"""The configuration that a stored run recorded, composed again: as data that somebody else may have written.

Of a run's folder only `.hydra/overrides.yaml` is read. An override of it may choose an option of our own conf/ or set a key of
one, and nothing else: `hydra.*` with its search path, and where the run kept its files, are left out; no path is followed; a
value is plain, without a resolver. What they compose names classes of sparsefront alone, unless the caller trusts a package
(`settings.typed_settings`).
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from sparsefront.arguments import GROUPS, OPTIONAL, ROOT_KEYS, option_folders
from sparsefront.errors import InvalidSetting
from sparsefront.group_options import options_of
from sparsefront.option_classes import shortened
from sparsefront.report.run_command import recorded_overrides

# of the run, and not of what it measured
LEFT_OUT = ("cache_dir", "results_dir", "logger", "stages", "reuse", "optimize", "report", "hydra")
# of the options that read files; a result holds their last part alone, since it names no machine
PATHS = (
    "model.path",
    "dataset.path",
    "dataset.train_file",
    "dataset.dev_file",
    "allocation.table",
    "recovery.teacher",
)
RESOLVER = re.compile(r"\$\{[^}]*:")  # ${oc.env:HOME} and the like; ${seed} names another key


def composable_overrides(folder: Path, given: Sequence[str], *, need_paths: bool = True) -> list[str]:
    """What composes the experiment of a stored run: what it recorded, checked, then the overrides given here.

    Args:
        folder: of the run.
        given: the user's own; they replace recorded ones of the same key, and their search path is looked through.
        need_paths: recorded paths are needed where they are not given; otherwise they are left out.
    Raises:
        InvalidSetting: a recorded override that sets more than options and their keys, or a path that is not given here.
    """
    replaced = {_key(text) for text in given}
    folders = option_folders(given)
    taken, paths = [], []
    for text in recorded_overrides(folder) or []:
        key = _key(text)
        if _head(key) in LEFT_OUT or key in replaced or ("trainer" in replaced and _head(key) == "trainer"):
            continue
        _require_plain(text, folders)
        if key not in PATHS:
            taken.append(text)
        elif text.partition("=")[2] not in ("null", "") and need_paths:
            paths.append(text)
    if paths:
        add = " ".join(f"{_key(text)}=..." for text in paths)
        how = f"is a path of the run's own machine, and no path of a record is followed: add {add} to the command"
        raise InvalidSetting(_key(paths[0]), shortened(paths[0].partition("=")[2]), how)
    return [*taken, *given]


def _require_plain(text: str, folders: Iterable[Path]) -> None:
    """Raise unless an override chooses an option that is there, or sets a key of one, to a plain value."""
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        raise _refused(text, "is no override") from None
    key = override.key_or_group
    if override.package is not None or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", key, flags=re.ASCII):
        raise _refused(text, "sets more than a key")
    if _head(key) not in (*ROOT_KEYS, *OPTIONAL):
        raise _refused(text, f"is no setting of a run; the root takes {', '.join(ROOT_KEYS)}")
    if override.is_sweep_override():
        raise _refused(text, "is a sweep, and a result is of one point")
    if RESOLVER.search(text):
        raise _refused(text, "asks for a resolver")
    if key in GROUPS and not override.is_delete():
        _require_options(text, key, override, folders)


def _require_options(text: str, group: str, override: Override, folders: Iterable[Path]) -> None:
    """Of names such as `../../elsewhere` Hydra would read the file."""
    value = override.value()
    names = value if isinstance(value, list) else [value]
    known = options_of(group, folders)
    for name in names:
        if str(name) not in known:
            own = f"{group} has no such option here; there are {', '.join(known)}"
            remedy = "one of the author's own is found with hydra.searchpath=[file://DIR], and its class with trust=[PACKAGE]"
            raise _refused(text, f"{own}; {remedy}")


def _refused(text: str, why: str) -> InvalidSetting:
    key, _, value = text.partition("=")
    return InvalidSetting(shortened(key), shortened(value), f"(recorded in .hydra/overrides.yaml) {why}")


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")


def _head(key: str) -> str:
    """Of a key or a group: `hydra` of hydra/launcher and of hydra.run.dir."""
    return re.split(r"[./@]", key, maxsplit=1)[0]
