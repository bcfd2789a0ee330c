"""python -m sparsefront.verify row.json [row.json ...] [OVERRIDES]"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and os.getcwd() in sys.path[:1]:
    del sys.path[0]  # `python -m` adds the working directory, and a stranger's folder may contain a torch.py

from sparsefront.verify.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
