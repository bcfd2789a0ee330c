"""Compare the runs under `results/`: a sorted table, a Pareto plot (PNG) and a self-contained page (HTML).

python compare.py [results ...] [out=DIR] [sort=COLUMN] [source=wandb project=NAME entity=NAME]
"""

import sys

from sparsefront.interrupts import end_at_once

if __name__ == "__main__":
    end_at_once()  # on Ctrl-C, while all else is imported

from sparsefront.__main__ import compare

if __name__ == "__main__":
    sys.exit(compare(sys.argv[1:]))
