"""One experiment -> one result: `python run.py pattern=tile_wise granularity=128`; `python run.py --help` shows the groups."""

import sys

from sparsefront.run_command import main

if __name__ == "__main__":
    main(sys.argv[1:])
