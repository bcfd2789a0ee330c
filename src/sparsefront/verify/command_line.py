"""The command line of `sparsefront verify`, and its verdicts."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsefront.config.schema import Config
from sparsefront.errors import InvalidSetting
from sparsefront.options import program_command, shortened

OTHER, NOT_EVALUATED, VERIFIED = "differs", "not evaluated", "verified"
STATUS = {OTHER: 1, NOT_EVALUATED: 2, VERIFIED: 0}
PARTLY = 3  # verified but for what the last line names
TRUST = "trust="


def worst_status(verdicts: Iterable[str]) -> int:
    return min((STATUS.get(verdict, PARTLY) for verdict in verdicts), key=(1, 2, PARTLY, 0).index)


# COMMAND: as the user typed it.
DESCRIPTION = """\
Whether a stored result still is what was measured, and whether measuring again gives the same. Nothing that came with the result
runs as code; docs/reviewing.md says what is read, what runs, and what no check can see.

First the record: its own sha256, those of its files, masks and weights, and the numbers that follow from others (latencies from
samples.json, metrics from outcomes.npz). One that was edited is refused, and nothing is measured. Then the run is composed,
evaluated and timed again from its export and from the dense weights in the cache, and every field of the record is compared:
metrics up to a tenth of a point or one sample, latencies and speedups up to the noise of the repetition. When and how long it
ran, with which versions, and what was chosen by timing is compared with the result in the cache of the run, if that is here.
What is done meanwhile is told on stderr.

  COMMAND results/RUN/row.json
  COMMAND results/RUN/row.json dataset.path=DIR        no path of a record is followed: name yours
  COMMAND results/RUN/row.json --cache-dir DIR         the cache that holds its dense network and its export
  COMMAND row.json --checkpoint DIR pattern=n_m ...    a record without its run's folder
  COMMAND results/RUN/row.json trust=[mylab.patterns]  classes of a package of its author's, whose code runs
  COMMAND results/A/row.json results/B/row.json        several, one after another; the status is the worst
  COMMAND results/RUN/row.json --record-only           digests and what follows from them, nothing is evaluated
  COMMAND experiments/records/STUDY/RUN_ID.record.zip --retrain dataset.path=DIR   a record without weights

--retrain makes the weights again: it trains, prunes, recovers and measures by the overrides that the run recorded, in a cache of
its own (.cache/retrained, or --cache-dir), where a killed one resumes. Each metric must lie within two standard errors of the
record's, on the same kind of GPU or on another; latencies are compared on the same kind alone.

Digests show that a record was edited. They do not show who made it: who edits a result can also write a new sha256 into
it. Against forging only measuring again helps, and that compares nothing but what can be measured here.

The last line (of each of several rows, after its name) is one of
  verified                                  every field of the record was seen, and holds                    status 0
  verified: TOPICS; not verified: TOPICS    what could be seen here holds; the rest is the record's word     status 3
  differs                                   edited, or measuring again gives something else                  status 1
  not evaluated                             with --record-only, or it cannot be verified here                status 2
"""


def trusted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into the packages of `trust=[a,b]` and the overrides."""
    named = [text.removeprefix(TRUST) for text in arguments if text.startswith(TRUST)]
    packages = [package.strip().strip("'\"") for text in named for package in text.strip("[]").split(",")]
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise InvalidSetting("trust", shortened(package), "names packages: trust=[mylab.patterns]")
    return packages, [text for text in arguments if not text.startswith(TRUST)]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_command("verify"),
        description=DESCRIPTION.replace("COMMAND", program_command("verify")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "row", type=Path, help="row.json of a run, the run's folder, or a packed record; more may follow"
    )
    parser.add_argument(
        "overrides", nargs="*", help="Hydra overrides, after those that the run recorded; trust=[PACKAGE]"
    )
    parser.add_argument("--checkpoint", type=Path, help="folder of the exported network (the link in the run's folder)")
    parser.add_argument("--cache-dir", type=Path, help=f"of the stages that are here ({Config().cache_dir})")
    parser.add_argument("--record-only", action="store_true", help="evaluate nothing")
    parser.add_argument("--retrain", action="store_true", help="make the weights again")
    return parser
