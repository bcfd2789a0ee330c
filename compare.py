"""Compare the runs under `results/`: a sorted table, a Pareto plot (PNG) and a self-contained page (HTML).

python compare.py [results ...] [out=DIR] [sort=COLUMN] [source=wandb project=NAME entity=NAME]
"""

import sys

from sparsefront.__main__ import compare

if __name__ == "__main__":
    sys.exit(compare(sys.argv[1:]))
