"""Bring the cells of recorded result tables (rows.csv) to the field names of today; columns stay as they are.

    python experiments/migrate_results.py experiments/first_rows/rows.csv [more ...]

Only JSON cells hold names: {"kernel": ...} in `extra_metrics`, {"refusals": ...} in `kernel_per_layer`, and settings in
`recipe_parameters` and `trainer_parameters`. Readers take both forms, so running it is a matter of tidiness; running it again
changes nothing.
"""

import csv
import json
import sys
from pathlib import Path

from sparsefront.artifacts.csv_lines import TEXT
from sparsefront.artifacts.durable import whole_file
from sparsefront.report.renamed_fields import RENAMED_INSIDE, RENAMED_PER_ENTRY, with_new_keys

COLUMNS = {name: group for group, _, name in (field.partition(".") for field in (*RENAMED_INSIDE, *RENAMED_PER_ENTRY))}


def migrate(table: Path) -> int:
    """Rewrite one table, whole or not at all; returns how many cells changed."""
    with table.open(newline="", **TEXT) as file:
        header, *lines = list(csv.reader(file))
    changed = 0
    for line in lines:
        for place, name in enumerate(header):
            if name in COLUMNS and line[place]:
                old = json.loads(line[place])
                new = with_new_keys(COLUMNS[name], name, old)
                if new != old:
                    line[place], changed = json.dumps(new, sort_keys=True), changed + 1
    if changed:
        with whole_file(table) as whole, whole.open("w", newline="", **TEXT) as file:
            csv.writer(file, lineterminator="\n").writerows([header, *lines])
    return changed


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"{argument}: {migrate(Path(argument))} cells")
