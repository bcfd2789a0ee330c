"""`python -m sparsefront_kernels.build` compiles all CUDA sources ahead of their first use, at once.

Prints the path of each library and the seconds its build took; where one cannot be built, prints the reason and exits with 1.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from sparsefront_kernels.cuda_library import SOURCES, BuildFailed, build


def main() -> int:
    """Build all libraries; the exit code."""
    with ThreadPoolExecutor(len(SOURCES)) as pool:
        lines = list(pool.map(_build_one, SOURCES))
    for succeeded, line in lines:
        print(line, file=sys.stdout if succeeded else sys.stderr)
    return 0 if all(succeeded for succeeded, _ in lines) else 1


def _build_one(name: str) -> tuple[bool, str]:
    start = time.monotonic()
    try:
        library = build(name)
    except BuildFailed as failure:
        return False, str(failure)
    return True, f"{library}  {time.monotonic() - start:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
