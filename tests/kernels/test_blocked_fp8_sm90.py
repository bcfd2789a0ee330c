"""Blocked weights in e4m3: packing walked as the kernel does, its schedule, wrong operands, and on a GPU every launch."""

import drawn_masks
import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.fp8_reference import blocked_fp8_quantized_reference, blocked_fp8_reference
from sparsefront_kernels.blocked.fp8_sm90 import (
    E4M3,
    SPACE,
    blocked_fp8,
    blocked_fp8_quantized,
    dense_weight,
    launch_blocked_fp8,
    pack_for_blocked_fp8_sm90,
)
from sparsefront_kernels.quantized.quantize import quantize

BLOCKS = [((128, 128), 5, 3, 0.5), ((64, 128), 5, 7, 0.4), ((192, 256), 3, 2, 0.6), ((64, 128), 4, 3, 0.0)]
BLOCKS += [((64, 128), 6, 1, 1.0), ((128, 128), 4, 33, 0.7)]


def stored_weight(block, rows, columns, density=0.5, device="cpu", seed=0):
    mask = drawn_masks.blocks(*block, density, seed)(rows * block[0], columns * block[1])
    weight = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed))
    return FORMATS["blocked"].from_dense(weight.to(device), mask.to(device), block=block)


def drawn_x(m, k, groups, device="cpu"):
    return quantize(torch.randn(m, k, device=device), group=None if groups == 1 else k // groups)


class TestWithoutGPU:
    def test_wrong_operands_are_said(self):
        packed = pack_for_blocked_fp8_sm90(stored_weight((64, 128), 3, 2))
        x, scales = drawn_x(4, 256, 1)
        wrong = {
            "x must be float8_e4m3fn \\[M, K\\] with K = 256, not torch.float32": (x.float(), scales),
            "x_scales must be float32 \\[4, 1\\] or \\[4, 2\\], not torch.float32 \\[4, 3\\]": (x, scales.expand(4, 3)),
            "bias must be a float \\[192\\], not torch.float32 \\[2\\]": (x, scales, torch.ones(2)),
        }
        for message, (x_of, scales_of, *bias) in wrong.items():
            with pytest.raises(ValueError, match=message):
                blocked_fp8(x_of, scales_of, packed, *bias)
        with pytest.raises(ValueError, match="activation 'swish' is not one of none"):
            blocked_fp8(x, scales, packed, activation="swish")
        with pytest.raises(ValueError, match="out_dtype must be float16 or bfloat16, not torch.float32"):
            blocked_fp8(x, scales, packed, out_dtype=torch.float32)
        with pytest.raises(ValueError, match="adjacent_halves=True"):
            blocked_fp8_quantized(x, scales, packed)
        with pytest.raises(ValueError, match="adjacent halves need outputs in multiples of 128, not 192"):
            pack_for_blocked_fp8_sm90(stored_weight((64, 128), 3, 2), adjacent_halves=True)
        small = stored_weight((64, 64), 2, 2)
        with pytest.raises(ValueError, match="by a multiple of 128 inputs, not 64x64"):
            pack_for_blocked_fp8_sm90(small)
        pointers = torch.zeros(65_537, dtype=torch.int32)
        tall = BlockedFormat((65_536 * 64, 128), (64, 128), torch.zeros(0, 64, 128), pointers, pointers[:0])
        with pytest.raises(ValueError, match="takes up to 4194240 outputs, not 4194304"):
            pack_for_blocked_fp8_sm90(tall)


def assert_quantized(q, scales, expected):
    """A step of e4m3 from the reference, or a 448th of the group's largest number where sums cancel."""
    wanted, wanted_scales = expected
    assert ((scales - wanted_scales).abs() <= 3e-3 * wanted_scales).all()
    q, wanted = q.double(), wanted.double()
    step = torch.ldexp(torch.ones_like(wanted), wanted.abs().clamp(min=2.0**-6).frexp().exponent - 4)
    wrong = ((q - wanted).abs() <= 1.01 * step + 1).logical_not()
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {q.numel()}, such as {q[wrong][:8].tolist()} for {wanted[wrong][:8].tolist()}"
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize(("block", "rows", "columns", "density"), BLOCKS)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_every_launch(self, block, rows, columns, density, dtype, assert_close):
        stored = stored_weight(block, rows, columns, density, "cuda")
        packed, (n, k) = pack_for_blocked_fp8_sm90(stored), stored.shape
        bias = torch.randn(n, device="cuda")
        for m, groups, activation in (
            (1, 1, "none"),
            (77, k // 128, "relu"),
            (300, 1, "gelu"),
            (1027, k // 128, "gelu_tanh"),
        ):
            x, scales = drawn_x(m, k, groups, "cuda")
            residual = torch.randn(m, n, device="cuda", dtype=dtype)
            for epilogue in ({}, {"bias": bias, "residual": residual, "activation": activation}):
                expected = blocked_fp8_reference(x, scales, packed, **epilogue)
                for launch in SPACE:
                    y = torch.full((m, n), torch.nan, device="cuda", dtype=dtype)
                    launch_blocked_fp8(x, scales, y, packed, launch=launch, **epilogue)
                    assert_close(y, expected)

    @pytest.mark.parametrize("groups", [1, 4])
    def test_every_launch_quantized(self, groups):
        stored = stored_weight((64, 128), 6, 4, 0.6, "cuda")
        packed, bias = pack_for_blocked_fp8_sm90(stored, adjacent_halves=True), torch.randn(384, device="cuda").half()
        for m, activation in ((1, "none"), (130, "relu"), (517, "gelu")):
            x, scales = drawn_x(m, 512, groups, "cuda")
            expected = blocked_fp8_quantized_reference(x, scales, packed, bias, activation=activation)
            for launch in SPACE:
                q = torch.full((m, 384), torch.nan, device="cuda").to(E4M3)
                q_scales = torch.full((m, 3), torch.nan, device="cuda")
                launch_blocked_fp8(
                    x, scales, q, packed, y_scales=q_scales, bias=bias, activation=activation, launch=launch
                )
                assert_quantized(q, q_scales, expected)

    def test_quantization_of_exact_sums(self):
        """A weight of one kept block that is a multiple of the identity: Y is X, of any size."""
        weight = torch.zeros(128, 256, device="cuda")
        weight[:, 128:] = torch.eye(128, device="cuda")
        mask = torch.zeros_like(weight, dtype=torch.bool)
        mask[:, 128:] = True
        packed = pack_for_blocked_fp8_sm90(FORMATS["blocked"].from_dense(weight, mask, block=(128, 128)))
        x = torch.randn(128, 256, device="cuda").to(E4M3)
        x[0] = 0
        # sizes from those whose reciprocals overflow to those of large activations, and scales that are no powers of two
        scales = (torch.rand(128, 1, device="cuda") + 0.5) * torch.logspace(-38, 30, 128, device="cuda")[:, None]
        y = (x[:, 128:].float() * 448) * scales * packed.scales  # in the kernel's order
        expected, expected_scales = quantize(y, group=128)
        for launch in SPACE:
            q, q_scales = torch.empty(128, 128, device="cuda", dtype=E4M3), torch.empty(128, 1, device="cuda")
            launch_blocked_fp8(x, scales, q, packed, y_scales=q_scales, launch=launch)
            assert torch.equal(q_scales, expected_scales)
            assert torch.equal(q.float(), expected.float())  # a zero has no sign among sums

    @pytest.mark.parametrize("groups", [1, 4])
    def test_values_that_are_not_finite(self, groups, assert_close):
        stored = stored_weight((128, 128), 4, 4, 0.5, "cuda")
        packed = pack_for_blocked_fp8_sm90(stored)
        rows = torch.randn(200, 512, device="cuda")
        rows[3], rows[5, 7], rows[9, 300], rows[11, 100] = 0, torch.nan, torch.inf, 1e4
        x, scales = quantize(rows, group=None if groups == 1 else 128)
        expected = blocked_fp8_reference(x.float().nan_to_num().to(E4M3), scales, packed)
        # where a kept weight reads it
        missing = x.float().isnan().float() @ (dense_weight(packed) != 0).float().t() > 0
        assert missing.any()
        for launch in SPACE:
            y = torch.empty(200, 512, device="cuda", dtype=torch.float16)
            launch_blocked_fp8(x, scales, y, packed, launch=launch)
            q, q_scales = torch.empty(200, 512, device="cuda", dtype=E4M3), torch.empty(200, 4, device="cuda")
            launch_blocked_fp8(x, scales, q, packed, y_scales=q_scales, launch=launch)
            assert torch.equal(y.isnan(), missing) and torch.equal(q.float().isnan(), missing)
            assert (y[3] == 0).all() and (q_scales[3] == 1).all() and q_scales.isfinite().all()
            assert_close(y.masked_fill(missing, 0), expected.masked_fill(missing, 0))

    def test_rows_do_not_depend_on_neighbors(self):
        """GELU in half is for rows whose numbers half holds: others among them have sizes of any kind."""
        packed, (x, scales) = (
            pack_for_blocked_fp8_sm90(stored_weight((128, 128), 4, 4, 0.5, "cuda")),
            drawn_x(200, 512, 1, "cuda"),
        )
        other_scales, alike = scales.clone(), torch.arange(200) % 3 > 0
        other_scales[::3] *= torch.logspace(-12, 12, 67, device="cuda")[:, None]
        for launch in SPACE:
            found = []
            for of_rows in (scales, other_scales):
                q, q_scales = torch.empty(200, 512, device="cuda", dtype=E4M3), torch.empty(200, 4, device="cuda")
                launch_blocked_fp8(x, of_rows, q, packed, y_scales=q_scales, activation="gelu", launch=launch)
                found.append((q[alike].view(torch.uint8), q_scales[alike]))
            assert all(torch.equal(one, other) for one, other in zip(*found, strict=True)), launch

    def test_repeats_under_load_are_equal(self):
        packed = pack_for_blocked_fp8_sm90(stored_weight((64, 128), 32, 16, 0.25, "cuda"))
        x, scales = drawn_x(1024, 2048, 16, "cuda")
        load, side = torch.randn(4096, 4096, device="cuda").half(), torch.cuda.Stream()
        for launch in SPACE:
            with torch.cuda.stream(side):
                for _ in range(20):
                    load @ load
            y = [torch.empty(1024, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(100)]
            for one in y:
                launch_blocked_fp8(x, scales, one, packed, launch=launch)
            torch.cuda.synchronize()
            assert all(torch.equal(one, y[0]) for one in y)

    def test_compiled_graph_and_cuda_graph(self, assert_close):
        packed = pack_for_blocked_fp8_sm90(stored_weight((128, 128), 3, 3, 0.7, "cuda"))
        x, scales = drawn_x(50, 384, 3, "cuda")

        def chain(x, scales):
            q, q_scales = blocked_fp8_quantized(x, scales, packed, activation="relu")
            return blocked_fp8(q, q_scales, packed)

        eager = chain(x, scales)
        assert torch.equal(torch.compile(chain, fullgraph=True)(x, scales), eager)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = chain(x, scales)
        y.fill_(torch.nan)
        graph.replay()
        assert torch.equal(y, eager)
        q, q_scales = blocked_fp8_quantized(x, scales, packed, activation="relu")
        assert_close(eager, blocked_fp8_reference(q, q_scales, packed))

    def test_unaligned_operands_are_copied(self, assert_close):
        packed = pack_for_blocked_fp8_sm90(stored_weight((64, 128), 3, 2, 0.7, "cuda"))
        x, scales = drawn_x(40, 256, 1, "cuda")
        wide = torch.zeros(40, 260, device="cuda").to(E4M3)
        wide[:, 3:259] = x
        residual = torch.randn(40, 193, device="cuda").half()[:, 1:]
        y = blocked_fp8(wide[:, 3:259], scales.expand(40, 2)[:, :1], packed, residual=residual)
        assert_close(y, blocked_fp8_reference(x, scales, packed, residual=residual))
