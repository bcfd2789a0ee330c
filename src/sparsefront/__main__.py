"""The command line: `sparsefront run|compare|verify|cache|build`, or `python -m sparsefront ...`."""

import os
import sys

if __name__ == "__main__" and sys.argv[1:2] == ["verify"] and not sys.flags.safe_path and os.getcwd() in sys.path[:1]:
    del sys.path[0]  # `python -m` adds the working directory, where an untrusted folder may have a torch.py

from sparsefront.interrupts import end_at_once, interruptible

if __name__ == "__main__":
    end_at_once()

import importlib.metadata
from collections.abc import Sequence

from sparsefront.options import CONF, missing_package, program_command

try:
    import hydra
    from omegaconf import DictConfig
except ModuleNotFoundError as error:  # the library alone was installed
    sys.exit(str(missing_package(error)))

from sparsefront.artifacts.durable import explain_denial
from sparsefront.config import command_line
from sparsefront.config.arguments import normalize_arguments
from sparsefront.config.settings import check_root
from sparsefront.errors import InvalidSetting
from sparsefront.processes import gc_disabled
from sparsefront.progress import exit_quietly_on_broken_pipe, ignore_output_errors
from sparsefront.results.compare_arguments import USAGE, parse
from sparsefront.results.run_folder import ANOTHER_FOLDER


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def _hydra_main(cfg: DictConfig) -> float | tuple[float, ...] | None:
    """Run the configured stages; returns the result's values named by `optimize`, for a sweeper."""
    with command_line.job() as output_dir, command_line.report_errors_briefly(cfg, output_dir):
        check_root(cfg)
        with gc_disabled():  # which would look through all modules again and again
            # imported here: --help, --cfg and wrong keys need neither torch nor Lightning, which take seconds
            from sparsefront.pipeline import run_experiment

        return run_experiment(cfg)


def run(arguments: Sequence[str]) -> None:
    """Run one experiment, or a sweep with `-m`.

    Args:
        arguments: Hydra's overrides and flags; --help shows the groups.
    """
    with ignore_output_errors(), command_line.report_interrupt_briefly():
        with command_line.exit_on_bad_input():
            sys.argv[1:] = normalize_arguments(arguments)
        with command_line.sweep_summary(), command_line.report_composition_briefly():
            _hydra_main()


@exit_quietly_on_broken_pipe()
@interruptible()
def compare(arguments: Sequence[str]) -> int:
    """Run the comparison; returns the exit status: 0, or 1 with one message on stderr."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE.replace("COMMAND", program_command("compare")), end="")
        return 0
    try:
        request = parse(arguments)
        from sparsefront.results.compare import answer  # here, so that --help and mistakes do not wait for torch

        answer(request)
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 1
    except PermissionError as error:
        print(explain_denial(error, otherwise=ANOTHER_FOLDER), file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        complaint = missing_package(error)
        if complaint is None:
            raise
        print(complaint, file=sys.stderr)
        return 1
    return 0


PURPOSES = {
    "run": "one experiment -> one result; -m for a sweep: COMMAND pattern=tile_wise",
    "compare": "results -> a table, a Pareto plot and a page: COMMAND results",
    "verify": "whether a result is what was measured: COMMAND RUN/row.json",
    "cache": "finished stages on the disk: COMMAND [show | check | remove]",
    "build": "compile all CUDA kernels ahead of their first use: COMMAND",
}
HELP = ("", "-h", "--help")
COMPLETION = ("-sc", "--shell-completion")


def complete(arguments: Sequence[str]) -> None:
    """Answer the function that `sparsefront run -sc install=SHELL` prints: the shell calls it with this program's first word, and
    the line as it is typed in COMP_LINE.
    """
    first, _, typed = os.environ.get("COMP_LINE", "").partition(" ")
    command, behind, rest = typed.lstrip().partition(" ")
    if not behind:
        print(" ".join(name for name in PURPOSES if name.startswith(command)))
    elif command == "run":
        os.environ["COMP_LINE"] = f"{first} {rest}"
        run(arguments)


def main() -> int | None:
    """Run the command in `sys.argv`; returns the exit status."""
    name, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if name == "--version":
        print(f"sparsefront {importlib.metadata.version('sparsefront')}")
        return 0
    if name in COMPLETION:
        return complete(sys.argv[1:])
    if name == "run":
        return run(rest)
    if name == "compare":
        return compare(rest)
    if name == "verify":
        from sparsefront.verify.__main__ import main as verify

        return interruptible()(verify)(rest)
    if name == "cache":
        from sparsefront.cache.__main__ import main as cache

        return interruptible()(cache)(rest)
    if name == "build":
        from sparsefront_kernels.build import main as build

        return build(rest, program_command("build"))
    if name not in HELP:
        print(f"sparsefront {name}: no such command; there are {', '.join(PURPOSES)}", file=sys.stderr)
        return 2
    print("usage: sparsefront COMMAND ...\n")
    for command, purpose in PURPOSES.items():
        print(f"  {command:<8} {purpose.replace('COMMAND', program_command(command))}")
    print("\n--help behind a command shows its options; sparsefront --version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
