"""Compiles one library with torch's extension builder: the process that `cuda_library` starts, with its arguments as JSON.

What the builder, ninja and nvcc say goes to stdout and stderr.
"""

import json
import sys

from torch.utils.cpp_extension import load

if __name__ == "__main__":
    load(**json.loads(sys.argv[1]), with_cuda=True, is_python_module=False, verbose=True)
