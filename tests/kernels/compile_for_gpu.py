"""Compile every Triton kernel, as its launcher would launch it, for GPUs that are not here. Run by test_compile.py.

Prints one line per compiled kernel: name, compute capability, bytes of shared memory.
"""

import sys
import warnings
from collections.abc import Iterator

import torch
import triton
from sparsefront_kernels import FORMATS, entry
from sparsefront_kernels.blocked import triton_spmm as blocked
from sparsefront_kernels.gathered import triton_spmm as gathered
from sparsefront_kernels.n_m import triton_spmm as n_m
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
LAUNCH_OPTIONS = ("num_warps", "num_stages")


class Recorder:
    """Stands in for a kernel and keeps the arguments of its launches."""

    def __init__(self, kernel: triton.runtime.JITFunction) -> None:
        self.kernel = kernel
        self.launches: list[dict] = []

    def __getitem__(self, grid: tuple[int]):
        return lambda *args, **kwargs: self.launches.append(
            dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs
        )


def source_of(kernel: triton.runtime.JITFunction, launch: dict) -> ASTSource:
    """The launch as Triton would specialise it: ones become constants, multiples of 16 are declared as such."""
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value, constant = launch[name], kernel.params[place].is_constexpr
        if constant or (isinstance(value, int) and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
            continue
        signature[name] = POINTERS[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        if isinstance(value, torch.Tensor) or value % 16 == 0:
            attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constexprs=constants, attrs=attributes)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, triton.runtime.JITFunction, dict]]:
    """Launch every kernel once on a small weight with the shape parameters of a large one."""
    weight, kept = torch.ones(256, 256, dtype=dtype), torch.ones(256, 256, dtype=torch.bool)
    two_of_four = torch.tensor([True, True, False, False]).repeat(64).expand(256, 256)
    for module, name, family, mask, parameters in (
        (gathered, "gathered_triton", "gathered", kept, {"tile": 128}),
        (gathered, "gathered_triton_feature_major", "gathered", kept, {"tile": 32}),
        (blocked, "blocked_triton", "blocked", kept, {"block": (128, 128)}),
        (blocked, "blocked_triton", "blocked", kept, {"block": (4, 64)}),
        (n_m, "n_m_triton", "n_m", two_of_four, {"n": 2, "m": 4}),
        (n_m, "n_m_triton", "n_m", two_of_four, {"n": 32, "m": 64}),
    ):
        kernel_name = f"_{family}_spmm_kernel"
        kernel = getattr(module, kernel_name)
        recorder = Recorder(kernel)
        setattr(module, kernel_name, recorder)
        try:
            stored = FORMATS[family].from_dense(weight, mask, **parameters)
            entry(name).run(torch.ones(256, 256, dtype=dtype), entry(name).prepare(stored), weight[0])
        finally:
            setattr(module, kernel_name, kernel)
        yield f"{name} {parameters} {dtype}", kernel, recorder.launches[0]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    capabilities = [int(argument) for argument in sys.argv[1:]]
    for dtype in (torch.float16, torch.float32):
        for name, kernel, launch in launches(dtype):
            options = {option: launch[option] for option in LAUNCH_OPTIONS}
            for capability in capabilities:
                target = GPUTarget("cuda", capability, 32)
                compiled = triton.compile(source_of(kernel, launch), target=target, options=options)
                print(name, capability, compiled.metadata.shared, sep=" | ")
