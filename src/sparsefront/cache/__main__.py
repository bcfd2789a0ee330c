"""python -m sparsefront.cache [show | check | remove ...]"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsefront.artifacts.durable import explain_denial
from sparsefront.errors import InvalidSetting, printable
from sparsefront.options import program_command
from sparsefront.progress import exit_quietly_on_broken_pipe

# The command line; COMMAND: as the user typed it.

COMMANDS = ("show", "check", "remove")
DESCRIPTION = """\
What the finished stages of runs take on the disk, by stage and by run; whether they are damaged; and their removal.
Results are never touched. A stage that was removed is made again by the next run that needs it, with all that it costs.

  COMMAND                            sizes by stage and by run
  COMMAND check                      read everything, name what is damaged (status 1 if any is)
  COMMAND remove --unused            what no result was made from: shown, not removed
  COMMAND remove --unused --yes      ... removed
  COMMAND remove --older-than 30d --stage export
  COMMAND remove --run results/NAME  what this run used and no other
"""
REMOVE = """\
Shows what meets all the conditions that are given; --yes removes it. What a running process makes or uses is kept.
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse options; `command` is show (the default), check or remove."""
    has_command = arguments and (arguments[0] in COMMANDS or not arguments[0].startswith("-"))
    helped = {"-h", "--help"} & {*arguments}
    return _parser().parse_args(arguments if has_command or helped else ["show", *arguments])


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument(
        "--cache-dir", type=Path, default=Path(".cache/sparsefront"), help="cache_dir of the runs (.cache/sparsefront)"
    )
    places.add_argument(
        "--results-dir",
        type=Path,
        action="append",
        default=[],
        help="one more folder of results; `results` and those that runs with this cache wrote to are known",
    )
    name = program_command("cache")
    parser = argparse.ArgumentParser(name, description=DESCRIPTION.replace("COMMAND", name), formatter_class=raw)
    commands = parser.add_subparsers(dest="command", metavar="{show,check,remove}")
    show = commands.add_parser("show", parents=[places], help="sizes by stage and by run (the default)")
    commands.add_parser("check", parents=[places], help="read every file and compare it with its checksum")
    removes = commands.add_parser(
        "remove", parents=[places], help="remove stages: see remove --help", description=REMOVE, formatter_class=raw
    )
    show.add_argument("--all", action="store_true", help="every run, not only the largest")
    removes.add_argument(
        "--unused",
        action="store_true",
        help="what no result was made from; also what a killed run had finished, so --older-than 2d goes well with it",
    )
    removes.add_argument("--older-than", metavar="AGE", help="last used longer ago: 36h, 30d, 2w")
    removes.add_argument("--run", action="append", default=[], help="what this run used and no other: folder or run_id")
    removes.add_argument("--damaged", action="store_true", help="what is not as it was stored (reads everything)")
    removes.add_argument(
        "--unfinished",
        action="store_true",
        help="what killed trainings left to resume from, instead of finished stages",
    )
    removes.add_argument("--stage", action="append", default=[], help="of this stage alone: dense, recover, export ...")
    removes.add_argument("--yes", action="store_true", help="remove it; without this it is only shown")
    return parser


UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def seconds_of(age: str) -> float:
    """Convert `36h`, `30d`, `2w` to seconds.

    Raises:
        InvalidSetting: another format.
    """
    age_match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", age)
    if age_match is None:
        raise InvalidSetting("--older-than", age, "is written as a number with h, d or w: 36h, 30d, 2w")
    return float(age_match[1]) * UNITS_S[age_match[2]]


def _complete(options: argparse.Namespace) -> None:
    """Validate the options and set `older_than_s`, in seconds.

    Raises:
        InvalidSetting: conflicting options, nothing to remove, or no such folder.
    """
    if options.command == "remove":
        options.older_than_s = None if options.older_than is None else seconds_of(options.older_than)
        if options.unfinished and (options.unused or options.run or options.damaged):
            raise InvalidSetting(
                "--unfinished", "", "goes with --older-than and --stage alone: no result is made from it"
            )
        if not (options.unused or options.older_than or options.run or options.damaged or options.unfinished):
            raise InvalidSetting("remove", "", "say what: --unused, --older-than, --run, --damaged or --unfinished")
    if not options.cache_dir.is_dir():
        raise InvalidSetting("--cache-dir", options.cache_dir, "no such folder; it is cache_dir of the runs")


@exit_quietly_on_broken_pipe()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status: 0, or 1 with a message."""
    options = parse(arguments)
    try:
        _complete(options)
        from sparsefront.cache.commands import RUN  # late: help and errors need no torch

        return RUN[options.command](options)
    except InvalidSetting as error:
        setting = " ".join(filter(None, (error.key, "" if error.value is None else str(error.value))))
        print(printable(f"{setting}: {error.allowed}"), file=sys.stderr)
        return 1
    except PermissionError as error:
        print(explain_denial(error, otherwise="name another --cache-dir"), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
