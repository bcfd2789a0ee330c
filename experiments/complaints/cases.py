"""The eight threads: what each multiplied, by what pattern, and how it ran it."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

import sparsefront as sf

Way = Literal["semi_structured", "csr", "zeros"]
TWO_FOUR = sf.patterns.NM(m=4)


@dataclass(frozen=True)
class Case:
    """One product, or a chain of them, of a thread.

    Args:
        thread: where the complaint is; `said`: what it says, with its own numbers.
        shape: in words.
        m: rows of X.
        layers: (K, N) of Linear layers, one after the other; several where one would stay in the cache between two calls.
        pattern: of sparsefront. sparsity: that it is asked for.
        way: how the thread ran it: PyTorch's 2:4 tensors, its CSR tensors, or zeros in dense weights.
        choice: what of the case is ours, where the thread does not say; "" where it says all.
        unsupported: part of the complaint that no kernel here can repeat; "" where there is none.
    """

    thread: str
    said: str
    shape: str
    m: int
    layers: tuple[tuple[int, int], ...]
    pattern: Any = TWO_FOUR
    sparsity: float = 0.5
    way: Way = "semi_structured"
    dtype: torch.dtype = torch.float16
    choice: str = ""
    unsupported: str = ""

    def scaled(self, factor: int) -> "Case":
        """The same with every width divided, in multiples of 64, for a machine without a GPU."""

        def less(size: int) -> int:
            return max(64, size // factor // 64 * 64)

        return replace(
            self, m=min(self.m, 32), layers=tuple((less(k), less(n)) for k, n in self.layers), dtype=torch.float32
        )


SQUARE = ((4096, 4096),) * 4
LLAMA_2 = (*SQUARE, (4096, 11008), (11008, 4096), (4096, 11008))
LLAMA_3_MLP = ((4096, 14336), (14336, 4096), (4096, 14336))
BERT_LARGE = (*(((1024, 1024),) * 4), (1024, 4096), (4096, 1024))

CASES = (
    Case(
        "pytorch/pytorch#153825",
        "2:4 on an H100 0.41x",
        "one layer, 10240 inputs, 3072 outputs",
        3072,
        ((10240, 3072),),
    ),
    Case(
        "pytorch/pytorch#111339",
        "2:4 at batch 1 0.11x, padded to 32 rows, more memory",
        "four layers of 4096 x 4096",
        1,
        SQUARE,
    ),
    Case(
        "NVIDIA forum 340931",
        "2:4 decode of Llama-2-7B 12 % slower (RTX 4090)",
        "the seven GEMMs of a Llama-2-7B block",
        1,
        LLAMA_2,
        choice="one sequence at a time",
    ),
    Case(
        "NVIDIA forum 340931, more rows",
        "asks whether batching requests helps",
        "the same layers",
        32,
        LLAMA_2,
        choice="32 rows",
    ),
    Case(
        "NVIDIA/TensorRT-LLM#1913, Model-Optimizer#36",
        "Llama-3-8B: layers are eligible for 2:4 but never picked, because dense kernels are faster",
        "the MLP of Llama-3-8B",
        2048,
        LLAMA_3_MLP,
        choice="2,048 tokens, fp16",
        unsupported="fp8, which the thread ran (no sparse fp8 kernel in this rerun)",
    ),
    Case(
        "NVIDIA/TensorRT#2271",
        "BERT on SQuAD: no GEMM is eligible for 2:4",
        "the six GEMMs of a BERT-large layer",
        8 * 384,
        BERT_LARGE,
        choice="BERT-large, 8 sequences of 384",
    ),
    Case(
        "rain-neuromorphics/SparseLinear#2",
        "unstructured at 90 %: 17.7 ms against 3.3 ms dense (P100)",
        "20000 x 20000, fp32",
        1,
        ((20000, 20000),),
        sf.patterns.ElementWise(),
        0.9,
        "csr",
        torch.float32,
    ),
    Case(
        "IST-DASLab/sparsegpt#1",
        "pruned to 50 %: slower, and larger on the GPU",
        "four layers of 4096 x 4096, unstructured",
        1,
        SQUARE,
        sf.patterns.ElementWise(),
        0.5,
        "zeros",
        choice="widths of a 7B model, one row",
    ),
    Case(
        "pytorch/ao#1617",
        "SemiSparseLinear, 2:4 in both directions, wrong and slower (H100)",
        "one layer, 10240 inputs, 3072 outputs, tiles of 4 x 4",
        3072,
        ((10240, 3072),),
        sf.patterns.NM(m=4, transposable=True),
        unsupported="torchao's own class, removed from its releases; PyTorch's tensors stand in for it",
    ),
)
