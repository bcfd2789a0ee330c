"""Rewrite recorded tables whose kernels, shapes or launch parameters have had other names.

    python experiments/migrate_names.py                      every table of this repository
    python experiments/migrate_names.py rows.csv h200.plan   these files

Takes results and plans of the operator benchmark (CSV, plan) and the kernels package's tables: tuned launches, rates and
constants, measured latencies (JSON; a user's own are in $SPARSEFRONT_KERNELS_CACHE). Numbers, columns and layouts stay as they
are, and a second run changes nothing. Old files can also be read as they are: `sparsefront_kernels.renamed` is applied then.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefront_kernels import renamed

ROOT = Path(__file__).resolve().parent.parent
TABLES = (
    "experiments/operators/*.csv",
    "experiments/operators/*.plan",
    "kernels/sparsefront_kernels/**/shipped/*.json",
)
# in plans kernels are chosen by patterns such as gathered_fp32*
NAMES = {**renamed.KERNELS, "gathered_fp32": renamed.KERNELS["gathered_fp32_cuda"]}
KERNEL = re.compile(rf"(?<![\w])(?:{'|'.join(sorted(NAMES, key=len, reverse=True))})(?![a-z0-9])")
SHAPE = re.compile(r"(?<!\w)skinny(?=\d+-)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the files; prints those that changed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    files = [Path(argument) for argument in arguments] or [
        path for table in TABLES for path in sorted(ROOT.glob(table))
    ]
    for path in files:
        old = path.read_bytes().decode()
        new = migrated(old, path.suffix)
        if new != old:
            path.write_bytes(new.encode())  # line endings stay: csv writes \r\n
            print(path)
    return 0


def migrated(text: str, suffix: str) -> str:
    """The content of a file with the names of today.

    Args:
        suffix: of its name; .json is read as JSON, anything else as text.
    Raises:
        ValueError: JSON that is none of the kernels package's tables.
    """
    text = SHAPE.sub(renamed.shape_name("skinny1-").removesuffix("1-"), KERNEL.sub(lambda found: NAMES[found[0]], text))
    if suffix != ".json":
        return text
    content = json.loads(text)
    if "measured" in content:  # holds names of kernels only
        return text
    if "kernels" in content:
        return json.dumps(content | {"kernels": renamed.tuned_kernels(content["kernels"])}, indent=1, sort_keys=True)
    if "constants" in content:
        return json.dumps(renamed.device_rates(content), indent=1) + "\n"
    raise ValueError("neither tuned launches, nor rates, nor measured latencies")


if __name__ == "__main__":
    sys.exit(main())
