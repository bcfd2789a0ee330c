"""`python -m sparsefront_kernels.build`, or `sparsefront build`, compiles all CUDA sources in advance.

Prints the path of each library and its build time; if one cannot be built, prints the reason and exits with 1.

With `--prebuilt` they go into the package instead, so that a wheel built afterwards needs no nvcc:

    cd kernels && python -m sparsefront_kernels.build --prebuilt && pip wheel --no-deps .
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sparsefront_kernels.cuda_library import SOURCES, BuildFailed, build, build_for_wheel, build_missing, during_builds


def build_kernels(tell: Callable[[str], None] = print) -> dict[str, str]:
    """Compile all CUDA sources that have no library on this machine yet, side by side, so that no later call waits for them.

    Args:
        tell: called with a line of text when the builds begin, and when they end.
    Returns:
        library -> why it cannot be built; empty if all can be used.
    """
    with during_builds(tell):
        return build_missing(SOURCES)


def main(arguments: Sequence[str] = (), command: str = "python -m sparsefront_kernels.build") -> int:
    """Build all libraries; returns the exit code.

    Args:
        command: as it was typed, for --help.
    """
    parser = argparse.ArgumentParser(prog=command, description=__doc__.split("\n")[0])
    parser.add_argument("--prebuilt", action="store_true", help="into the package, for a wheel")
    how = build_for_wheel if parser.parse_args(arguments).prebuilt else build
    with ThreadPoolExecutor(len(SOURCES)) as pool:
        lines = list(pool.map(partial(_build_one, how=how), SOURCES))
    for succeeded, line in lines:
        print(line, file=sys.stdout if succeeded else sys.stderr)
    return 0 if all(succeeded for succeeded, _ in lines) else 1


def _build_one(name: str, how: Callable[[str], Path]) -> tuple[bool, str]:
    start = time.monotonic()
    try:
        library = how(name)
    except BuildFailed as failure:
        return False, str(failure)
    return True, f"{library}  {time.monotonic() - start:.1f} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
