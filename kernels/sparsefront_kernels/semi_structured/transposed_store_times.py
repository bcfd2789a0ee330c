"""Times cuSPARSELt's algorithms with its transposed store; `transposed_store.py` runs it, since it may end in the midst.

    python -m sparsefront_kernels.semi_structured.transposed_store_times "{...}"

Takes a JSON object of m, k, n, dtype and device. Prints a JSON line for each algorithm that runs: its number, and microseconds.
"""

import json
import os
import sys
from dataclasses import asdict
from functools import partial

import torch

from sparsefront_kernels.bench.timing import time_calls
from sparsefront_kernels.semi_structured.algorithm import Algorithm, padded_rows

NUMBERS = 8  # in bfloat16 on an H200; float16, where a call takes a quarter of a second, is not asked for
SAMPLES = 5


def main(asked: dict) -> None:
    """Time algorithm after algorithm by replays of a graph, until one of them breaks the device."""
    torch.cuda.set_device(asked["device"])
    like = {"dtype": getattr(torch, asked["dtype"]), "device": "cuda"}
    weight = torch.randn(asked["n"], asked["k"], **like)
    weight.view(asked["n"], -1, 4)[..., :2] = 0
    packed, x = torch._cslt_compress(weight), torch.randn(asked["k"], padded_rows(asked["m"]), **like)
    for number in range(NUMBERS):
        product = partial(torch._cslt_sparse_mm, packed, x, transpose_result=True, **asdict(Algorithm(number)))
        try:
            latency_us = time_calls([product], samples=SAMPLES).median_us
        except RuntimeError as error:
            if "CUDA error" in str(error):
                os._exit(1)  # the device is lost to this process, which has nothing to tidy up
            continue  # there is no such algorithm, or it does not support this product
        print(json.dumps({"alg_id": number, "latency_us": latency_us}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
