"""Builds of CUDA libraries that need not import torch again, which takes longer than to compile a small source."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from program_server import ProgramServer
from sparsefront_kernels.cuda_library import BUILDER

SCRIPT = f"""
import os
from torch.utils import cpp_extension
cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]  # it looked for it when it was imported
{BUILDER}
"""


@contextmanager
def forking_builder() -> Iterator[SimpleNamespace]:
    """`subprocess` as `cuda_library` uses it, whose Python programs are the builder's script, forked where torch is imported."""
    server = ProgramServer(imported=("torch.utils.cpp_extension", "sparsefront_kernels"))

    def run(command: list[str], **settings) -> subprocess.CompletedProcess:
        if command[0] != sys.executable:
            return subprocess.run(command, **settings)
        done = server.run(["-c", SCRIPT, command[-1]], env=settings["env"], timeout=1800)
        return subprocess.CompletedProcess(command, done.returncode, done.stdout + done.stderr)

    yield SimpleNamespace(**vars(subprocess) | {"run": run})
    server.close()
