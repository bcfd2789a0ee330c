"""`python -m sparsefront_kernels.build`, or `sparsefront build`, compiles all CUDA sources in advance.

Prints the path of each library and its build time; if one cannot be built, prints the reason and exits with 1.

With `--prebuilt` they go into the package instead, for GPUs of compute capability 8.0 to 12.0, so that a wheel built afterwards
needs no nvcc:

    cd kernels && python -m sparsefront_kernels.build --prebuilt && pip wheel --no-deps .
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sparsefront_kernels.cuda_library import (
    ARCHITECTURES,
    SOURCES,
    BuildFailed,
    build,
    build_for_wheel,
    build_missing,
    during_builds,
    gpu_architectures,
    runs_on,
)


def build_kernels(tell: Callable[[str], None] = print) -> dict[str, str]:
    """Compile all CUDA sources that this machine's GPUs can run and that have no library yet, side by side, so that no later
    call waits for them; without a GPU, all.

    Args:
        tell: called with a line of text when the builds begin, and when they end.
    Returns:
        library -> why it cannot be built; empty if all can be used.
    """
    with during_builds(tell):
        return build_missing(_sources_for(gpu_architectures()))


def _sources_for(architectures: Sequence[str]) -> list[str]:
    return [name for name in SOURCES if runs_on(name, architectures)]


def main(arguments: Sequence[str] = (), command: str = "python -m sparsefront_kernels.build") -> int:
    """Build all libraries; returns the exit code.

    Args:
        command: as it was typed, for --help.
    """
    parser = argparse.ArgumentParser(prog=command, description=__doc__.split("\n")[0])
    parser.add_argument("--prebuilt", action="store_true", help="into the package, for a wheel")
    parser.add_argument(
        "--architectures",
        nargs="+",
        choices=ARCHITECTURES,
        default=ARCHITECTURES,
        help="of a wheel; default: all",
    )
    settings = parser.parse_args(arguments)
    how = partial(build_for_wheel, architectures=settings.architectures) if settings.prebuilt else build
    names = _sources_for(settings.architectures if settings.prebuilt else gpu_architectures())
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        lines = list(pool.map(partial(_build_one, how=how), names))
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
