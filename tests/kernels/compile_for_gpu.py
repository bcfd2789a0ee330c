"""Compile Triton kernels, as their launchers would launch them, for GPUs that are not here. Run by test_compile.py.

Arguments: compute capabilities; those behind "products" get the kernels that multiply alone, since these depend on the GPU most.

Prints one line per compiled kernel: name, compute capability, bytes of shared memory, whether products are rounded to TF32.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
from in_layout import in_layout
from sparsefront_kernels import FORMATS, triton_device
from sparsefront_kernels.attention import triton_cached, triton_encoder, triton_unpadded
from sparsefront_kernels.blocked import triton_spmm as blocked
from sparsefront_kernels.blocked import triton_training as training
from sparsefront_kernels.blocked.training import TrainableBlockedLinear, triton_weight_gradient
from sparsefront_kernels.gathered import triton_spmm as gathered
from sparsefront_kernels.gathered.triton import KERNEL_TF32 as GATHERED_TF32
from sparsefront_kernels.n_m import triton_rebuild
from sparsefront_kernels.norm import layer_norm_columns, triton_norm
from sparsefront_kernels.pointwise import epilogue, triton_epilogue
from sparsefront_kernels.quantized import few_rows, triton_few_rows, triton_quantize
from sparsefront_kernels.quantized import triton_epilogue as scaled_epilogue
from sparsefront_kernels.recurrent import triton_steps
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.float8_e4m3fn: "*fp8e4nv",
}
PRODUCTS = ("_gathered_triton_kernel", "_blocked_triton_kernel")
LAUNCH_OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
MODULES = (gathered, blocked, training, triton_rebuild, triton_norm, triton_epilogue, triton_quantize, scaled_epilogue)
MODULES += (triton_steps, triton_encoder, triton_unpadded, triton_cached, triton_few_rows, triton_device)


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
    """The launch as Triton would specialize it: ones become constants, multiples of 16 are declared as such."""
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value, constant = launch[name], kernel.params[place].is_constexpr
        if constant or (isinstance(value, int) and value == 1):
            signature[name], constants[(place,)] = "constexpr", value
            continue
        if isinstance(value, float):
            signature[name] = "fp32"
            continue
        signature[name] = POINTERS[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        if isinstance(value, torch.Tensor) or value % 16 == 0:
            attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constexprs=constants, attrs=attributes)


def launches(dtype: torch.dtype) -> Iterator[tuple[str, triton.runtime.JITFunction, dict]]:
    """Run every kernel once on a small weight with the shape parameters of a large one: all that it launches."""
    weight, kept = torch.ones(256, 256, dtype=dtype), torch.ones(256, 256, dtype=torch.bool)
    two_of_four = torch.tensor([True, True, False, False]).repeat(64).expand(256, 256)
    for name, family, mask, parameters in (
        ("gathered_triton", "gathered", kept, {"tile": 128}),
        ("gathered_triton_feature_major", "gathered", kept, {"tile": 32}),
        ("blocked_triton", "blocked", kept, {"block": (128, 128)}),
        ("blocked_triton", "blocked", kept, {"block": (4, 64)}),
        ("n_m_rebuilt", "n_m", two_of_four, {"n": 2, "m": 4}),
        ("n_m_rebuilt", "n_m", two_of_four, {"n": 32, "m": 64}),
        *([(GATHERED_TF32, "gathered", kept, {"tile": 128})] if dtype == torch.float32 else []),
    ):
        stored = FORMATS[family].from_dense(weight, mask, **parameters)
        with recorded() as recorders:
            in_layout(name).run(torch.ones(256, 256, dtype=dtype), in_layout(name).pack(stored), weight[0])
        yield from launches_of(f"{name} {parameters} {dtype}", recorders)
    with recorded() as recorders:
        index = torch.arange(256, dtype=torch.int32)
        gathered.expand_rows(weight, index, torch.empty_like(weight), weight[0], "gelu", weight)
    yield from launches_of(f"expand {dtype}", recorders)
    for features in (768, 1024, 5000):  # the last is not held in registers
        columns, parameters = torch.ones(features, 64, dtype=dtype), torch.ones(features, dtype=dtype)
        for x in (columns, columns.t().contiguous().t()):
            with recorded() as recorders:
                layer_norm_columns(x, parameters, parameters, 1e-12)
            yield from launches_of(f"layer_norm {features} {x.stride()} {dtype}", recorders)
    with recorded() as recorders:
        epilogue(weight, weight[0].float(), "gelu", weight.t())
    yield from launches_of(f"epilogue {dtype}", recorders)
    for kept_inputs in (352, 1040) if dtype.itemsize == 2 else ():
        panels, lists = torch.ones(2, 64, kept_inputs, dtype=dtype), torch.ones(2, kept_inputs, dtype=torch.int32)
        states = [weight[:, :32].contiguous() for _ in range(5)]
        with recorded() as recorders:
            triton_steps.launch_lstm_step(weight, *states[:2], panels, lists, weight[0], *states[2:])
        yield from launches_of(f"lstm_step {kept_inputs} {dtype}", recorders)
    with recorded() as recorders:
        states = [weight[:, :64].contiguous() for _ in range(3)]
        triton_steps.launch_lstm_gates(weight, weight, *states)
        triton_steps.launch_lstm_gates_backward(weight, weight, *states, torch.empty_like(weight), states[0])
    yield from launches_of(f"lstm_gates {dtype}", recorders)
    for bias in (None, torch.ones(4, 1023, dtype=dtype)):
        q, (offsets, columns) = weight.view(256, 4, 64), torch.ones(2, 256, dtype=torch.int32)
        with recorded() as recorders:
            triton_unpadded.launch_attention(q, q, q, offsets[:33], 0.125, bias, columns, torch.empty_like(q))
        yield from launches_of(f"attend_unpadded {bias is not None} {dtype}", recorders)
    for batch, length, feature_major, kind in (
        (4, 384, True, None),
        (16, 197, True, None),
        (4, 272, False, dtype),
        (4, 272, True, torch.bool),
    ):
        rows = torch.ones(batch * length, 192, dtype=dtype)
        y = (in_columns(rows) if feature_major else rows).view(batch, length, 192)
        out = torch.empty_like(y) if feature_major else y
        index = torch.zeros(3, 192, dtype=torch.int32) if feature_major else None
        mask = None if kind is None else torch.ones(batch, 1, length, length).to(kind)
        bias = rows[0] if feature_major else None
        with recorded() as recorders:
            triton_encoder.launch_attention(y, y, y, index, 3, 0.125, mask, bias, bias, out)
        yield from launches_of(f"attend {length} {feature_major} {kind} {dtype}", recorders)
    for group, masks in ((1, torch.bool), (8, dtype)):
        q, cache = torch.ones(8, 8 * group, 128, dtype=dtype), torch.ones(8, 8, 256, 128, dtype=dtype)
        rest = (weight[:8].to(masks), *2 * [weight[:8, :128]], torch.empty_like(q))
        with recorded() as recorders:
            operands = (q, *2 * [cache[:, :, 0]], *2 * [cache], torch.ones(1, dtype=torch.int64), 0.125)
            triton_cached.launch_cached_attention(*operands, *rest, parts=2)
        yield from launches_of(f"attend_cached {group} {dtype}", recorders)
    e4m3, scale = torch.float8_e4m3fn, weight.float()[:1, :1]
    for k, values, group, static, activation in (
        (4096, e4m3, None, None, "gelu"),
        (1024, e4m3, 128, None, "none"),
        (1024, e4m3, None, scale, "none"),
        (1024, torch.int8, None, None, "none"),
        (16384, e4m3, None, None, "none"),  # is read twice
    ):
        x = torch.ones(2, k, dtype=dtype)
        with recorded() as recorders:
            quantized = torch.empty(x.shape, dtype=values), torch.ones(2, k // (group or k))
            triton_quantize.launch_quantize(x, *quantized, group, static, 448.0, 2.0**-100, activation)
        yield from launches_of(f"quantize {k} {values} {group} {activation} {dtype}", recorders)
    for family, parameters in (("gathered", {"tile": 128}), ("dense", {})) if dtype.itemsize == 2 else ():
        packed = few_rows.pack_few_rows(FORMATS[family].from_dense(weight, kept, **parameters))
        with recorded() as recorders:
            operands = (packed.values, packed.inputs, packed.offsets, packed.outputs, packed.scales, weight[0], weight)
            for rows in (1, 16):
                triton_few_rows.launch_few_rows(weight[:rows], *operands, "none", torch.empty_like(weight[:rows]))
        yield from launches_of(f"int8_few_rows {family} {dtype}", recorders)
    for block in (64, 128):
        layer = TrainableBlockedLinear.from_masked(torch.nn.Linear(256, 256), kept, (block, block))
        with recorded() as recorders:
            triton_weight_gradient(weight, weight, layer._blocks)
        yield from launches_of(f"blocked_training {block} {dtype}", recorders)
    for sums in (weight, weight.t()):
        with recorded() as recorders:
            ones, y = torch.ones(256), torch.empty_like(sums)
            scaled_epilogue.launch_scaled_epilogue(sums, y, ones, ones, 0.5, weight[0], "gelu", sums)
        yield from launches_of(f"scaled_epilogue {sums.stride()} {dtype}", recorders)


def in_columns(rows: torch.Tensor) -> torch.Tensor:
    """The matrix, feature-major."""
    return rows.t().contiguous().t()


def launches_of(what: str, recorders: list[Recorder]) -> Iterator[tuple[str, triton.runtime.JITFunction, dict]]:
    for recorder in recorders:
        for launch in recorder.launches:
            yield f"{what} {recorder.kernel.__name__}", recorder.kernel, launch


@contextmanager
def recorded() -> Iterator[list[Recorder]]:
    """Within, recorders stand in for all kernels."""
    kernels = {
        (module, name): part
        for module in MODULES
        for name, part in vars(module).items()
        if isinstance(part, triton.runtime.JITFunction) and name.endswith("_kernel")
    }
    recorders = {place: Recorder(kernel) for place, kernel in kernels.items()}
    try:
        for (module, name), recorder in recorders.items():
            setattr(module, name, recorder)
        yield list(recorders.values())
    finally:
        for (module, name), kernel in kernels.items():
            setattr(module, name, kernel)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    every, _, products = " ".join(sys.argv[1:]).partition("products")
    of_every, of_products = ([int(capability) for capability in part.split()] for part in (every, products))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for name, kernel, launch in launches(dtype):
            options = {option: launch[option] for option in LAUNCH_OPTIONS if option in launch}
            for capability in of_every + (of_products if kernel.__name__ in PRODUCTS else []):
                if "PDL" in launch:
                    launch["PDL"] = capability >= 90  # programmatic dependent launch exists from 9.0 on
                target = GPUTarget("cuda", capability, 32)
                compiled = triton.compile(source_of(kernel, launch), target=target, options=options)
                print(name, capability, compiled.metadata.shared, "tf32" in compiled.asm["ptx"], sep=" | ")
