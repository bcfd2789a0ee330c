"""The installed program: `sparsefront COMMAND`, which Ctrl-C ends while it is still imported, too."""

from sparsefront.interrupts import end_at_once


def main() -> int | None:
    """Run the command in `sys.argv`; returns the exit status."""
    end_at_once()
    from sparsefront.__main__ import main as command

    return command()
