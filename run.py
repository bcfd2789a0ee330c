"""One experiment -> one result: `python run.py pattern=tile_wise granularity=128`; `python run.py --help` shows the groups."""

import sys

from sparsefront.interrupts import end_at_once

if __name__ == "__main__":
    end_at_once()  # on Ctrl-C, while all else is imported

from sparsefront.__main__ import run

if __name__ == "__main__":
    run(sys.argv[1:])
