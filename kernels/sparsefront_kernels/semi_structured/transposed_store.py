"""cuSPARSELt's algorithms with its transposed store, timed in a process of their own, since some of them end it.

The library's own search does not serve here: it ended in an illegal instruction for a small product (H200, CUDA 13.0, torch
2.11), after which a process can use the GPU no more.
"""

import json
import logging
import os
import subprocess
import sys

import torch

from sparsefront_kernels.problem import Problem
from sparsefront_kernels.semi_structured.algorithm import Algorithm

log = logging.getLogger(__name__)
MOST = 2  # that are worth timing again beside the default one
LONGEST_S = 30.0


def fast_with_transposed_store(problem: Problem) -> list[Algorithm]:
    """The fastest of the algorithms that ran in the other process before one ended it; none where it timed nothing.

    Args:
        problem: X is [K, M]; its device is a CUDA device.
    """
    asked = {"m": problem.m, "k": problem.k, "n": problem.n, "dtype": str(problem.dtype).removeprefix("torch.")}
    asked["device"] = torch.cuda.current_device() if problem.device.index is None else problem.device.index
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", f"{__name__}_times", json.dumps(asked)]
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        printed, said = ended.stdout, ended.stderr
    except subprocess.TimeoutExpired as late:
        printed, said = (late.stdout or b"").decode(), f"not within {LONGEST_S:g} s"
    timed = [json.loads(line) for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    if not timed:
        log.warning("cuSPARSELt's algorithms with the transposed store: none was timed: %s", said.strip()[-200:])
    timed.sort(key=lambda one: one["latency_us"])
    return [Algorithm(one["alg_id"]) for one in timed[:MOST]]
