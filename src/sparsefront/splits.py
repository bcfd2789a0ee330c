"""Print which rows of a data set are held out, as JSON: python -m sparsefront.splits KEY=VALUE ..."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsefront.config.settings import build_settings
from sparsefront.data.base import DROPPED, Dataset, Division
from sparsefront.errors import InvalidSetting, keys_of
from sparsefront.options import CONF
from sparsefront.progress import exit_quietly_on_broken_pipe
from sparsefront.runs import compose_config

HELP = """\
Which rows of a data set's train part are held out for choices, as JSON. KEY=VALUE are those of run.py; all but those of the data
set and cache_dir are ignored.

  python -m sparsefront.splits dataset=glue dataset.path=DIR
  python -m sparsefront.splits dataset=glue dataset.path=DIR dataset.split_by=rows

  split                  the rule, with its version, as results name it; rows: each by itself; null: nothing is held out
  rows, train, held_out, dropped, reported
                         how many rows were read, are trained on, are held out, are of no part, and are of the test part
  groups                 how many there are, how many are held out, and the rows of the largest of each; null for rows
  held_out_rows, dropped_rows
                         their numbers, from 0, in the order of the files

Status 2: the settings cannot be used, as the one line on stderr tells.
"""


def describe(dataset: Dataset, division: Division) -> dict[str, Any]:
    """The JSON-able content to print."""
    return {
        "dataset": dataset.name,
        "task": getattr(dataset, "task", None),
        "split": dataset.split_version,
        "valid_fraction": dataset.valid_fraction,
        "rows": division.rows,
        "train": len(division.train),
        "held_out": len(division.val),
        "dropped": len(division.dropped),
        "reported": len(division.test),
        "groups": None if division.groups is None else _groups(division.groups, division.val),
        "held_out_rows": division.val.tolist(),
        "dropped_rows": division.dropped.tolist(),
    }


def _groups(groups: np.ndarray, held: np.ndarray) -> dict[str, int]:
    sizes = np.unique(groups[groups != DROPPED], return_counts=True)[1]
    held_sizes = np.unique(groups[held], return_counts=True)[1]
    return {
        "count": len(sizes),
        "held_out": len(held_sizes),
        "largest": int(sizes.max(initial=0)),
        "largest_held_out": int(held_sizes.max(initial=0)),
    }


@exit_quietly_on_broken_pipe()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(HELP, end="")
        return 0
    try:
        with compose_config(arguments, CONF) as (config, _):
            dataset, cache_dir = (
                build_settings("dataset", config.dataset, base=Dataset),
                Path(config.cache_dir) / "data",
            )
            with keys_of("dataset"):
                _ = dataset.split_version
                dataset.check()
                dataset = dataset.at_commit(cache_dir)
                description = describe(dataset, dataset.division(cache_dir))
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(description))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
