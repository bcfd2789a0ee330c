"""python -m sparsefront.verify row.json [OVERRIDES]"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsefront.composing import configured
from sparsefront.errors import Edited, InvalidSetting, Obstacle
from sparsefront.report.run_command import own_sources, search_path
from sparsefront.runs import CONFIG_DIR
from sparsefront.stages.measure_again import DIFFERS, measure_again
from sparsefront.stages.stored_experiment import experiment_of
from sparsefront.standard_output import ending_with_its_reader
from sparsefront.validate import validate
from sparsefront.verify.manifest import check_pattern
from sparsefront.verify.record import check_export, find_export, read_record

DESCRIPTION = """\
Whether a stored result still is what was measured, and whether measuring again gives the same.

First the record: its own sha256, those of its files, masks and weights; pruned weights are zero, the compressed form that
kernels read is the same weights, and manifest.json states the sparsity, the settings of the pattern, the dense layers and the
shapes that they have, and the pattern that the configuration builds. One that was edited is refused, and nothing is measured.
Then the data: it must be what the result was measured on. Then the weights are evaluated again, and timed where the result's
GPU (or processor) is: the metric must be equal, up to a tenth of a point or one sample; the speedup lies within the record's
interval, or it is said that it does not. Without that GPU, that is said, and all else is verified on the CPU.

Digests show that a record was edited. They do not show who made it: who edits a result can also write a new sha256 into
it. Against forging only measuring again helps, and that compares nothing but what can be measured here.

  python -m sparsefront.verify results/RUN/row.json
  python -m sparsefront.verify results/RUN/row.json dataset.path=DIR     the same data, which lies elsewhere here
  python -m sparsefront.verify row.json --checkpoint DIR pattern=n_m ... a record without its run's folder
  python -m sparsefront.verify results/RUN/row.json --record-only        digests alone, nothing is measured

Status 0: what could be looked at holds (a speedup that does not is only said). 1: edited, or another metric. 2: cannot be
verified, for instance on other data.
"""


@ending_with_its_reader()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_intermixed_args(arguments)
    row = options.row / "row.json" if options.row.is_dir() else options.row
    try:
        return _verify(row, options)
    except InvalidSetting as error:
        edited = isinstance(error, Edited)
        print(f"{'refused' if edited else 'cannot be verified'}: {error}", file=sys.stderr)
        return 1 if edited else 2


@contextmanager
def _composed(overrides: Sequence[str]) -> Iterator[Any]:
    with configured(overrides, CONFIG_DIR) as (config, _):
        yield validate(config)


def _verify(row: Path, options: argparse.Namespace) -> int:
    result = read_record(row)
    print("record: holds, and so do its files that are here")
    export = find_export(result, row, options.checkpoint, options.cache_dir)
    if export is not None:
        check_export(result, export)
        print(f"masks and weights: hold, in {export.directory}")
    if options.record_only:
        return 0
    differs = 0
    cache = [] if options.cache_dir is None else [f"cache_dir={options.cache_dir}"]
    overrides = [*_own_options(row.parent, options.overrides), *cache, *options.overrides]
    with experiment_of(result, row, overrides, _composed) as experiment:
        if export is not None:
            check_pattern(export.manifest, experiment.pattern)
        for finding in measure_again(experiment, result, export):
            print(finding, flush=True)
            differs += finding.decides and finding.verdict == DIFFERS
    print("not verified: measuring again gives something else" if differs else "verified")
    return 1 if differs else 0


def _own_options(folder: Path, overrides: Sequence[str]) -> list[str]:
    """The override that finds a user's own options where the run found them, unless one is among the overrides given here."""
    if any(text.startswith("hydra.searchpath=") for text in overrides):
        return []
    sources = [source for _, source in own_sources(folder)]
    for source in sources:
        schema, _, place = source.partition("://")
        if schema == "file" and not Path(place).is_dir():
            remedy = "the run took options from there: name where it is now, hydra.searchpath=[file://DIR]"
            raise Obstacle(place, None, f"is gone; {remedy}")
    return list(filter(None, [search_path(sources)]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefront.verify",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("row", type=Path, help="row.json of a run, or the run's folder")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides, after those that the run recorded")
    parser.add_argument("--checkpoint", type=Path, help="folder of the exported network (the link in the run's folder)")
    parser.add_argument("--cache-dir", type=Path, help="cache_dir of the run (what the run recorded)")
    parser.add_argument("--record-only", action="store_true", help="measure nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
