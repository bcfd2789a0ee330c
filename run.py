"""One experiment -> one result: `python run.py pattern=tile_wise granularity=128`; `python run.py --help` shows the groups."""

import sys

from sparsefront.__main__ import run

if __name__ == "__main__":
    run(sys.argv[1:])
