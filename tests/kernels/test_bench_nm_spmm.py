"""NM-SpMM as a peer: its packed weight against what its kernels do with it, when it is left out, and on a GPU its products."""

import pytest
import torch
from sparsefront_kernels import FORMATS, cuda_library
from sparsefront_kernels.bench.baselines import nm_spmm
from sparsefront_kernels.bench.baselines.nm_spmm import VECTOR, WINDOWS, pack_for_nm_spmm
from sparsefront_kernels.bench.families import random_groups
from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.peers import PEERS
from sparsefront_kernels.bench.problems import Setting, Shape
from sparsefront_kernels.bench.provider import checked

CPU = torch.device("cpu")
PEER = PEERS["nm_spmm"]
UNAVAILABLE = nm_spmm.unavailable_reason()


def balanced(n, k, sparsity, device=CPU, *, m=32, tile=VECTOR):
    """A gathered weight that keeps n of every m inputs in vectors of `tile` outputs."""
    mask = random_groups(n // tile, k, round((1 - sparsity) * m), m, device).repeat_interleave(tile, 0)
    weight = torch.randn(n, k, device=device)
    return FORMATS["gathered"].from_dense(weight, mask, tile=tile, drop_empty_outputs=False)


def drawn(setting, stored):
    own = {"gathered": stored}
    reference = setting.reference(stored.to_dense())
    return DrawnWeight("vector_wise", VECTOR, "pattern", "m=32", setting, own, reference, setting.sparsity)


@pytest.mark.parametrize(
    ("n", "k", "tile", "sparsity", "reason"),
    [
        (128, 64, 16, 0.5, "vectors of 32 outputs"),
        (96, 64, 32, 0.5, "multiples of 128 of them, not 32 of 96"),
        (128, 64, 32, 0.6875, "the mask has 0.6875"),
        (128, 96, 32, 0.75, "16 of every 64 inputs, which do not divide K = 96"),
    ],
)
def test_weights_that_kernels_do_not_take(n, k, tile, sparsity, reason):
    with pytest.raises(ValueError, match=reason):
        pack_for_nm_spmm(balanced(n, k, sparsity, tile=tile), 128)


def test_free_vectors_are_not_taken():
    mask = torch.zeros(64, 64, dtype=torch.bool)
    mask[:, :32] = True
    build = FORMATS["gathered"].from_dense
    with pytest.raises(ValueError, match="16 of every 32 inputs; vector 0 keeps 32 of those from 0 on"):
        pack_for_nm_spmm(build(torch.randn(64, 64), mask, tile=32, drop_empty_outputs=False), 64)
    order = torch.arange(63, -1, -1)
    with pytest.raises(ValueError, match="in their own order"):
        pack_for_nm_spmm(build(torch.randn(64, 64), mask, tile=32, drop_empty_outputs=False, output_order=order), 64)


def test_when_it_is_left_out(monkeypatch, tmp_path):
    assert PEER.unsupported_reason("tf32", 0.5) == "NM-SpMM multiplies float32 alone, exactly"
    assert "0.5, 0.625, 0.75, 0.875, not 0.9" in PEER.unsupported_reason("fp32", 0.9)
    monkeypatch.delenv(nm_spmm.CHECKOUT, raising=False)
    assert "$SPARSEFRONT_NMSPMM does not name a checkout" in PEER.unsupported_reason("fp32", 0.5)
    monkeypatch.setenv(nm_spmm.CHECKOUT, str(tmp_path))
    assert "it lacks include/NM-SpMM.h" in PEER.unsupported_reason("fp32", 0.5)
    for name in nm_spmm.READ:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(cuda_library, "compiler", lambda: None)
    assert "nvcc is missing" in PEER.unsupported_reason("fp32", 0.5)
    monkeypatch.setattr(cuda_library, "compiler", lambda: "nvcc")
    assert PEER.unsupported_reason("fp32", 0.5) is None


@pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))
def test_a_checkout_compiles():
    assert nm_spmm.load((9, 0)).sparsefront_nm_spmm


@pytest.mark.gpu
@pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))
@pytest.mark.parametrize("sparsity", WINDOWS)
@pytest.mark.parametrize(("m", "k", "n"), [(64, 128, 128), (256, 1024, 512), (96, 64, 64)])
def test_every_kernel_is_right(sparsity, m, k, n):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cuda = torch.device("cuda")
    setting = Setting(Shape("small", m, k, n), "fp32", sparsity, cuda)
    for one in PEER.providers(setting, drawn(setting, balanced(n, k, sparsity, cuda))):
        assert checked(one) < 4e-6
