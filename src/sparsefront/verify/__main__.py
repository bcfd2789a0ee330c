"""python -m sparsefront.verify row.json [row.json ...] [OVERRIDES]"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and os.getcwd() in sys.path[:1]:
    del sys.path[0]  # `python -m` adds the working directory, and a stranger's folder may contain a torch.py

from collections.abc import Sequence
from pathlib import Path

from sparsefront.artifacts.bounded_files import Unreadable, read_bytes_bounded
from sparsefront.errors import Edited, InvalidSetting, printable
from sparsefront.progress import exit_quietly_on_broken_pipe
from sparsefront.results.packed import MEMBERS, RECORD, is_packed, read_in
from sparsefront.verify.command_line import NOT_EVALUATED, OTHER, make_parser, worst_status


@exit_quietly_on_broken_pipe()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options = make_parser().parse_intermixed_args(arguments)
    more = [
        text for text in options.overrides if "=" not in text and not text.startswith("~")
    ]  # no override looks like this
    options.overrides = [text for text in options.overrides if text not in more]
    rows, words = [options.row, *map(Path, more)], set()
    for given in rows:
        row = given / RECORD if given.is_dir() else given
        try:
            if more and options.checkpoint is not None:
                raise InvalidSetting("--checkpoint", options.checkpoint, "is of one row: verify each by itself")
            if options.retrain and (options.checkpoint is not None or options.record_only):
                raise InvalidSetting("--retrain", "", "makes weights again: leave out --checkpoint and --record-only")
            _require_readable(row)
            from sparsefront.verify.rows import check_row  # late: help and errors need no torch

            word = check_row(row, options)
        except InvalidSetting as error:
            word = OTHER if isinstance(error, Edited) else NOT_EVALUATED
            print(f"{'refused' if isinstance(error, Edited) else 'cannot be verified'}: {error}", file=sys.stderr)
        print(printable(f"{row}: {word}") if more else word, flush=True)
        words.add(word)
    return worst_status(words)


def _require_readable(row: Path) -> None:
    """Raise InvalidSetting if the record is missing, cannot be opened, or is a damaged packed one."""
    try:
        if is_packed(row):
            read_in(row, RECORD, max_bytes=MEMBERS[RECORD])
        else:
            read_bytes_bounded(row)
    except Unreadable as error:
        why = str(error) if is_packed(row) else f"is no result that can be read: {error}"
        raise InvalidSetting("row", row, why) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
