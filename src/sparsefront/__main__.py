"""The commands of an installation: `sparsefront run|compare|verify|cache`, or `python -m sparsefront ...`."""

import importlib
import importlib.metadata
import sys

# command -> the module whose `main` takes its arguments, and what it does
COMMANDS = {
    "run": (
        "sparsefront.run_command",
        "one experiment -> one result; -m for a sweep: sparsefront run pattern=tile_wise",
    ),
    "compare": (
        "sparsefront.results.compare",
        "results -> a table, a Pareto plot and a page: sparsefront compare results",
    ),
    "verify": ("sparsefront.verify.__main__", "whether a result is what was measured: sparsefront verify RUN/row.json"),
    "cache": ("sparsefront.cache.__main__", "finished stages on the disk: sparsefront cache [show | check | remove]"),
}
HELP = ("", "-h", "--help")


def main() -> int | None:
    """Run the command that `sys.argv` names; the exit status."""
    name, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name == "--version":
        print(f"sparsefront {importlib.metadata.version('sparsefront')}")
        return 0
    if name in COMMANDS:
        return importlib.import_module(COMMANDS[name][0]).main(rest)
    if name not in HELP:
        print(f"sparsefront {name}: no such command; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    print("usage: sparsefront COMMAND ...\n")
    for command, (_, purpose) in COMMANDS.items():
        print(f"  {command:<8} {purpose}")
    print("\n--help behind a command shows its options; sparsefront --version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
