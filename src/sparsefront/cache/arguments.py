"""The command line of `python -m sparsefront.cache`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("show", "check", "remove")
DESCRIPTION = """\
What the finished stages of runs take on the disk, by stage and by run; whether they are damaged; and their removal.
Results are never touched. A stage that was removed is made again by the next run that needs it, with all that it costs.

  python -m sparsefront.cache                              sizes by stage and by run
  python -m sparsefront.cache check                        read everything, name what is damaged (status 1 if any is)
  python -m sparsefront.cache remove --unused              what no result was made from: shown, not removed
  python -m sparsefront.cache remove --unused --yes        ... removed
  python -m sparsefront.cache remove --older-than 30d --stage export
  python -m sparsefront.cache remove --run results/NAME    what this run used and no other
"""
REMOVE = """\
Shows what meets all the conditions that are given; --yes removes it. What a running process makes or uses is kept.
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with `command`: show (also where none is named), check or remove."""
    named = arguments and (arguments[0] in COMMANDS or not arguments[0].startswith("-"))
    helped = {"-h", "--help"} & {*arguments}
    return _parser().parse_args(arguments if named or helped else ["show", *arguments])


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
    parser = argparse.ArgumentParser("python -m sparsefront.cache", description=DESCRIPTION, formatter_class=raw)
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
        "--unfinished", action="store_true", help="what killed trainings left to go on from, instead of finished stages"
    )
    removes.add_argument("--stage", action="append", default=[], help="of this stage alone: dense, recover, export ...")
    removes.add_argument("--yes", action="store_true", help="remove it; without this it is only shown")
    return parser
