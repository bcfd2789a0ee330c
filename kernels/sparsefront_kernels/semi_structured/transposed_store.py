"""cuSPARSELt's algorithms with its transposed store, timed in a process of their own, since some of them end it.

    python -m sparsefront_kernels.semi_structured.transposed_store '{"m": 64, "k": 64, "n": 32, "dtype": "float16", "device": 0}'

Prints a line of JSON for each algorithm that runs: its number, and microseconds. The library's own search does not serve here:
it ended in an illegal instruction for a small product, and so does algorithm 34 in float16 (H200, CUDA 13.0, torch 2.11),
after which a process can use the GPU no more.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from statistics import median

import torch

from sparsefront_kernels.problem import Problem
from sparsefront_kernels.semi_structured.algorithm import Algorithm, padded_rows

log = logging.getLogger(__name__)
MOST = 2  # that are worth timing again beside the default one
LONGEST_S = 30.0
NUMBERS = 64  # more than the library has: 47 in float16 and 8 in bfloat16 on an H200
WARMUP, SAMPLES = 2, 5


def fast_with_transposed_store(problem: Problem) -> list[Algorithm]:
    """The fastest of the algorithms that ran in the other process before one ended it; none where it timed nothing.

    Args:
        problem: X is [K, M]; its device is a CUDA device.
    """
    asked = {"m": problem.m, "k": problem.k, "n": problem.n, "dtype": str(problem.dtype).removeprefix("torch.")}
    asked["device"] = torch.cuda.current_device() if problem.device.index is None else problem.device.index
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", __name__, json.dumps(asked)]
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        log.warning("cuSPARSELt's algorithms with the transposed store: not timed within %g s", LONGEST_S)
        return []
    timed = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if not timed:
        log.warning(
            "cuSPARSELt's algorithms with the transposed store: none was timed: %s", ended.stderr.strip()[-200:]
        )
    timed.sort(key=lambda one: one["latency_us"])
    return [Algorithm(one["alg_id"]) for one in timed[:MOST]]


def main(asked: dict) -> None:
    """Time algorithm after algorithm, until one of them breaks the device.

    Few calls each: this tells which of them are worth timing well, while others may wait for the GPU.
    """
    torch.cuda.set_device(asked["device"])
    like = {"dtype": getattr(torch, asked["dtype"]), "device": "cuda"}
    weight = torch.randn(asked["n"], asked["k"], **like)
    weight.view(asked["n"], -1, 4)[..., :2] = 0
    packed, x = torch._cslt_compress(weight), torch.randn(asked["k"], padded_rows(asked["m"]), **like)
    for number in range(NUMBERS):
        product = partial(torch._cslt_sparse_mm, packed, x, transpose_result=True, **asdict(Algorithm(number)))
        try:
            latency_us = median([_event_us(product) for _ in range(WARMUP + SAMPLES)][WARMUP:])
        except RuntimeError as error:
            if "CUDA error" in str(error):
                os._exit(1)  # the device is lost to this process, which has nothing to tidy up
            continue  # there is no such algorithm, or it does not support this product
        print(json.dumps({"alg_id": number, "latency_us": latency_us}), flush=True)


def _event_us(product: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    product()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
