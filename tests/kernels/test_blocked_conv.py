"""Convolutions by the blocked kernel: how the copy engine walks over images, in plain loops; on a GPU against float64."""

from types import SimpleNamespace

import pytest
import torch
from sparsefront_kernels import FORMATS, entry
from sparsefront_kernels.blocked import sm90_convolution
from sparsefront_kernels.blocked.sm90 import SPACE
from sparsefront_kernels.blocked.sm90_convolution import Images
from sparsefront_kernels.blocked.sm90_packing import pack_for_blocked_sm90
from sparsefront_kernels.problem import Convolution
from torch.nn.functional import conv2d

CONVOLUTIONS = {
    "1x1, stride 2": Convolution((1, 1), stride=(2, 2)),
    "3x3": Convolution((3, 3), padding=(1, 1)),
    "3x3, stride 2": Convolution((3, 3), stride=(2, 2), padding=(1, 1)),
    "3x1, uneven": Convolution((3, 1), stride=(2, 1), padding=(1, 0)),
    "3x3, dilated": Convolution((3, 3), padding=(2, 2), dilation=(2, 2)),
    "5x3, wide padding": Convolution((5, 3), padding=(4, 2), stride=(3, 2)),
}
ALL = pytest.mark.parametrize("convolution", CONVOLUTIONS.values(), ids=CONVOLUTIONS)


@ALL
def test_sizes(convolution):
    x = torch.randn(2, 3, 13, 10)
    settings = {"stride": convolution.stride, "padding": convolution.padding, "dilation": convolution.dilation}
    y = conv2d(x, torch.randn(4, 3, *convolution.kernel_size), **settings)
    assert convolution.output_size(13, 10) == tuple(y.shape[2:])
    images = Images.of(x.permute(0, 2, 3, 1).contiguous(), convolution)
    assert (images.n, images.h, images.w, images.c) == (2, 13, 10, 3)
    assert (images.out_h, images.out_w) == tuple(y.shape[2:])
    assert (images.filter_h, images.filter_w) == convolution.kernel_size
    assert (images.padding_h, images.stride_w) == (convolution.padding[0], convolution.stride[1])


def test_what_it_cannot_read():
    packed, x = pack_for_blocked_sm90(blocks(128, 64 * 9)), torch.randn(2, 8, 8, 64, dtype=torch.float16)
    reads, three = entry("blocked_sm90").convolving, CONVOLUTIONS["3x3"]
    assert reads.unsupported(packed, x, three) is None
    narrow = pack_for_blocked_sm90(blocks(128, 64 * 9, inputs=32))
    assert "boxes of 32 of 64 channels" in reads.unsupported(narrow, x, three)
    assert "of 96 channels" in reads.unsupported(packed, x.new_zeros(1, 4, 4, 96), three)
    assert "channels_last" in reads.unsupported(packed, x.permute(0, 2, 1, 3), three)
    assert "strides up to 8" in reads.unsupported(packed, x, Convolution((3, 3), stride=(9, 9)))
    assert "within 127 pixels" in reads.unsupported(packed, x, Convolution((3, 3), dilation=(64, 64)))
    for wrong in (x.float(), x.new_zeros(2, 8, 8, 128), x[0]):
        with pytest.raises(ValueError, match=r"images must be torch.float16 \[B, H, W, 64\]"):
            reads.run(wrong, packed, None, three)
    with pytest.raises(ValueError, match="relu_last is for sums with a residual"):
        reads.run(x, packed, None, three, relu_last=True)


def blocks(n, k, *, inputs=64, density=0.5, device="cpu", dtype=torch.float16):
    mask = (torch.rand(n // 64, k // inputs, device=device) < density).repeat_interleave(64, 0)
    mask = mask.repeat_interleave(inputs, 1)
    weight = torch.randn(n, k, device=device, dtype=dtype)
    return FORMATS["blocked"].from_dense(weight, mask, block=(64, inputs))


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(3, 17, 13), (1, 7, 7), (2, 30, 30)], ids=str)
@ALL
def test_every_launch_of_the_space(convolution, size, dtype, assert_close, monkeypatch):
    channels, n = 128, 192
    stored = blocks(n, channels * convolution.kernel_size[0] * convolution.kernel_size[1], device="cuda", dtype=dtype)
    packed, bias = pack_for_blocked_sm90(stored), torch.randn(n, device="cuda")
    x = torch.randn(*size, channels, device="cuda", dtype=dtype)
    weight = stored.to_dense().double().view(n, *convolution.kernel_size, channels).permute(0, 3, 1, 2)
    settings = {"stride": convolution.stride, "padding": convolution.padding, "dilation": convolution.dilation}
    sums = conv2d(x.double().permute(0, 3, 1, 2), weight, bias.double(), **settings).permute(0, 2, 3, 1)
    residual = torch.randn(sums.shape, device="cuda", dtype=dtype)
    reads = entry("blocked_sm90").convolving
    assert reads.unsupported(packed, x, convolution) is None
    for launch in SPACE:
        chosen = SimpleNamespace(
            launch_for=lambda problem, device, launch=launch: launch, timed_alike=lambda problem, device: True
        )
        monkeypatch.setattr(sm90_convolution, "LAUNCHES", chosen)
        assert_close(reads.run(x, packed, bias, convolution), sums)
        assert_close(reads.run(x, packed, bias, convolution, activation="relu"), sums.relu())
        y = reads.run(x, packed, bias, convolution, residual=residual, relu_last=True)
        assert_close(y, (sums + residual.double()).relu())
