"""Short names for the masks of a results file, so that two patterns, or two settings of one, are never drawn as one."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

Masks = tuple[str, str, str]
COLUMNS = ("distribution", "pattern", "mask_settings")


def masks_of(row: Mapping[str, str]) -> Masks:
    """What of a row tells its masks from others."""
    return tuple(row[column] for column in COLUMNS)


def distribution_names(rows: Iterable[Mapping[str, str]]) -> dict[Masks, str]:
    """Masks → name: the distribution where masks were drawn at random; else the pattern, with those of its settings that
    differ in the file: "tile_wise", or "tile_wise whole_tiles=true"."""
    every = dict.fromkeys(map(masks_of, rows))
    settings: dict[str, list[set[str]]] = defaultdict(list)
    for _, pattern, text in every:
        if text:
            settings[pattern].append(set(text.split()))
    names = {}
    for distribution, pattern, text in every:
        shared = set.intersection(*settings[pattern]) if settings[pattern] else set()
        own = [setting for setting in text.split() if setting not in shared]
        names[distribution, pattern, text] = " ".join([pattern, *own]) if text else distribution
    return names
