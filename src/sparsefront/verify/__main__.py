"""python -m sparsefront.verify row.json [row.json ...] [OVERRIDES]: the command line, and its verdicts."""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and os.getcwd() in sys.path[:1]:
    del sys.path[0]  # `python -m` adds the working directory, and a stranger's folder may contain a torch.py

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from sparsefront.artifacts.bounded_files import Unreadable
from sparsefront.config.schema import Config
from sparsefront.errors import Edited, InvalidSetting, printable
from sparsefront.options import program_command
from sparsefront.progress import exit_quietly_on_broken_pipe
from sparsefront.results.packed import MEMBERS, RECORD, is_packed, read_in
from sparsefront.verify.compared import NOT_EVALUATED, OTHER, VERIFIED

STATUS = {OTHER: 1, NOT_EVALUATED: 2, VERIFIED: 0}
PARTLY = 3  # verified but for what the last line names


def worst_status(verdicts: Iterable[str]) -> int:
    return min((STATUS.get(verdict, PARTLY) for verdict in verdicts), key=(1, 2, PARTLY, 0).index)


DESCRIPTION = """\
Whether a stored result still is what was measured: first its digests and the numbers that follow from others, then every field
against the run composed, evaluated and timed again from its export and the dense weights in the cache. Nothing that came with
the result runs as code; docs/reviewing.md says what is read and what no check can see. Digests show that a record was edited,
not who made it: against forging only measuring again helps.

  COMMAND results/RUN/row.json dataset.path=DIR        no path of a record is followed: name yours
  COMMAND row.json --checkpoint DIR pattern=n_m ...    a record without its run's folder
  COMMAND RUN_ID.record.zip --retrain dataset.path=DIR train, prune and recover again, in .cache/retrained or --cache-dir

The last line (of each of several rows, after its name), and the exit status:
  verified                                  every field of the record was seen, and holds                    0
  verified: TOPICS; not verified: TOPICS    what could be seen here holds; the rest is the record's word     3
  differs                                   edited, or measuring again gives something else                  1
  not evaluated                             with --record-only, or it cannot be verified here                2
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_command("verify"),
        description=DESCRIPTION.replace("COMMAND", program_command("verify")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("row", type=Path, help="row.json, the run's folder, or a packed record; more may follow")
    parser.add_argument("overrides", nargs="*", help="of Hydra; trust=[PACKAGE]: its classes may run")
    parser.add_argument("--checkpoint", type=Path, help="folder of the exported network (the link in the run's folder)")
    parser.add_argument("--cache-dir", type=Path, help=f"of the stages that are here ({Config().cache_dir})")
    parser.add_argument("--record-only", action="store_true", help="evaluate nothing")
    parser.add_argument("--retrain", action="store_true", help="make the weights again")
    return parser


@exit_quietly_on_broken_pipe()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options = make_parser().parse_intermixed_args(arguments)
    more = [text for text in options.overrides if "=" not in text and not text.startswith("~")]  # no overrides
    options.overrides = [text for text in options.overrides if text not in more]
    rows, words = [options.row, *map(Path, more)], set()
    for path in rows:
        row = path / RECORD if path.is_dir() else path
        try:
            if more and options.checkpoint is not None:
                raise InvalidSetting("--checkpoint", options.checkpoint, "is of one row: verify each by itself")
            if options.retrain and (options.checkpoint is not None or options.record_only):
                raise InvalidSetting("--retrain", "", "makes weights again: leave out --checkpoint and --record-only")
            try:
                read_in(*((row, RECORD) if is_packed(row) else (row.parent, row.name)), max_bytes=MEMBERS[RECORD])
            except Unreadable as error:
                why = str(error) if is_packed(row) else f"is no result that can be read: {error}"
                raise InvalidSetting("row", row, why) from None
            from sparsefront.verify.rows import check_row  # late: help and errors need no torch

            word = check_row(row, options)
        except InvalidSetting as error:
            word = OTHER if isinstance(error, Edited) else NOT_EVALUATED
            print(f"{'refused' if isinstance(error, Edited) else 'cannot be verified'}: {error}", file=sys.stderr)
        print(printable(f"{row}: {word}") if more else word, flush=True)
        words.add(word)
    return worst_status(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
