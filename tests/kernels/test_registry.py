"""The registry: names, what is found, and a reason for everything that is not."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import (
    FORMATS,
    KernelEntry,
    Problem,
    UnsupportedProblem,
    cuda_library,
    entries,
    entry,
    families,
    find,
    labeled,
    names,
    reference,
)

CPU, HALF = torch.device("cpu"), {"dtype": torch.float16}


def test_every_family_has_a_reference():
    for family in families():
        assert reference(family).is_reference
        assert not reference(family).requires_cuda
        assert FORMATS[family].family == family


@pytest.mark.parametrize("kernel", entries(), ids=lambda kernel: kernel.name)
def test_files_hold_the_kernel_itself(kernel):
    assert pickle.loads(pickle.dumps(kernel)) is kernel and copy.deepcopy(kernel) is kernel


def test_layout_without_a_label():
    with pytest.raises(ValueError, match="'csr_sm90_row_to_feature'; csr_sm90 takes row_major, feature_major"):
        labeled("csr_sm90_row_to_feature")
    with pytest.raises(ValueError, match="no kernel is called 'csr'"):
        labeled("csr_feature_major")


def test_kernel_runs_in_its_layouts():
    def product(x, packed, bias, *, layout):
        return layout

    kernel = KernelEntry(name="some", family="csr", product=product, layouts=("feature_major", "feature_to_row"))
    x = torch.zeros(2, 2)
    assert kernel.run(x, None) == "feature_major" and kernel.run(x, None, layout="feature_to_row") == "feature_to_row"
    with pytest.raises(UnsupportedProblem, match="some: takes feature_major or feature_to_row .*, not row_major"):
        kernel.run(x, None, layout="row_major")
    alone = KernelEntry(name="one", family="csr", product=lambda x, packed, bias: "whatever it has")
    assert alone.run(x, None, layout="row_major") == "whatever it has"


def test_unknown_names_list_what_exists():
    with pytest.raises(ValueError, match=r"'gather'.* gathered_triton"):
        entry("gather")
    with pytest.raises(ValueError, match=r"'bsr'.* blocked"):
        reference("bsr")


def test_usable_and_unsupported_cover_all_kernels(case):
    stored = case.build()
    found = find(stored, Problem(3, stored.shape[1], stored.shape[0], torch.float32, CPU))
    assert {kernel.name for kernel in found.usable} | found.unsupported.keys() == set(names())
    assert reference(case.family) in found.usable
    assert all(found.unsupported.values())


@pytest.mark.parametrize(
    ("weight", "kernel", "changes", "reason"),
    [
        ("gathered-kept", "csr_torch", {}, "stored as gathered, not csr"),
        ("gathered-kept", "gathered_triton", {"k": 71}, r"\[N, K\] = \[32, 70\], the problem asks for \[32, 71\]"),
        (
            "gathered_overlay",
            "gathered_overlay_composed",
            {"layout": "row_to_feature"},
            "takes row_major or feature_major activations, not row_to_feature",
        ),
        ("gathered-kept", "gathered_quack", {}, "takes feature_major activations, not row_major"),
        ("gathered-kept", "gathered_triton", {"dtype": torch.float64}, "not torch.float64"),
        ("gathered-kept", "gathered_triton_tf32", {}, "fp32_precision"),
        ("gathered-kept", "gathered_triton_tf32", HALF, "takes float32, not torch.float16"),
        ("gathered-kept", "gathered_reference", {"dtype": torch.int8}, "takes floating point"),
        ("gathered-kept", "gathered_reference", {"device": torch.device("meta")}, "meta device"),
        ("gathered-kept", "gathered_triton", {"device": torch.device("mps")}, "needs a CUDA device, not mps"),
        ("csr", "csr_torch", {}, "needs a CUDA device"),
        ("csr", "csr_torch", {"dtype": torch.float64}, "takes float16, bfloat16 or float32"),
        ("semi_structured", "semi_structured_torch", {}, "float16 or bfloat16"),
        ("semi_structured", "semi_structured_torch", {"dtype": torch.float16}, "needs a CUDA device"),
        ("semi_structured-short", "semi_structured_torch", {"dtype": torch.float16}, "multiples of 16"),
        ("gathered-128", "gathered_sm90", {}, "takes float16 or bfloat16, not torch.float32"),
        ("gathered-128", "gathered_sm90", HALF, "needs a CUDA device, not cpu"),
        ("gathered-odd-tile", "gathered_sm90", HALF, "not tiles of 24 outputs"),
        ("gathered-odd-tile", "gathered_simt", {}, "not tiles of 24 outputs"),
        ("gathered-kept", "gathered_simt", HALF, "takes float32, not torch.float16"),
        ("gathered-kept", "gathered_indexed", {}, "takes tiles of 1, 2, 4, 8 or 16 outputs, not of 32"),
        ("gathered-kept", "gathered_small_m", HALF | {"m": 65}, "takes up to 64 rows of X, not 65"),
        ("gathered-kept", "gathered_small_m", {"dtype": torch.float64}, "not torch.float64"),
        ("gathered_2_4-odd-tile", "gathered_2_4_sm90", HALF, "takes tiles of a multiple of 64 outputs, not of 7"),
        ("blocked-32x32", "blocked_sm90", HALF, "not 32x32: half of"),
        ("blocked-128x16", "blocked_sm90", HALF | {"layout": "feature_major"}, "boxes of 64 inputs .*, not of 16"),
        ("blocked_2_4-kept", "blocked_2_4_sm90", HALF, "a multiple of 64 inputs, not 16x16"),
        ("n_m-5:12", "n_m_mma", HALF, "takes 1:4, 2:4 and 3:32, not 5:12"),
        ("n_m-2:4", "n_m_mma", {}, "takes float16 or bfloat16, not torch.float32"),
        ("n_m-2:4", "n_m_small_m", {"m": 65}, "takes up to 64 rows of X, not 65"),
        ("ell-1", "ell_small_m", {"m": 17}, "takes up to 16 rows of X, not 17"),
        ("csr", "csr_sm90", {"dtype": torch.float64}, "takes float16, bfloat16 or float32"),
    ],
)
def test_unsupported_problems_say_why(cases, weight, kernel, changes, reason):
    stored = cases[weight].build()
    asked = {"m": 4, "k": stored.shape[1], "n": stored.shape[0], "dtype": torch.float32, "device": CPU} | changes
    problem = Problem(**asked)
    with pytest.raises(UnsupportedProblem, match=f"{kernel}: .*{reason}"):
        entry(kernel).require_supported(stored, problem)


def test_triton_needs_the_interpreter_on_cpu(cases, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for weight in ("gathered-kept", "blocked-kept", "n_m-7:7"):
        stored = cases[weight].build()
        found = find(stored, Problem(4, stored.shape[1], stored.shape[0], torch.float32, CPU))
        assert [kernel.name for kernel in found.usable] == [reference(stored.family).name]
        kernel = "n_m_rebuilt" if stored.family == "n_m" else f"{stored.family}_triton"
        assert "needs a CUDA device" in found.unsupported[kernel]


def test_packing_for_cusparselt_needs_a_gpu(cases):
    with pytest.raises(UnsupportedProblem, match="packs on a CUDA device"):
        entry("semi_structured_torch").pack(cases["semi_structured"].build().to(dtype=torch.float16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"m": -1}, "m >= 0"), ({"k": 0}, "k >= 1"), ({"n": 0}, "n >= 1"), ({"layout": "nchw"}, "'nchw' is not one of")],
)
def test_impossible_problems_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        Problem(**{"m": 1, "k": 1, "n": 1, "dtype": torch.float32, "device": CPU} | changes)


@pytest.fixture
def gpu(monkeypatch):
    """gpu(capability): there is such a GPU, and all libraries are built."""

    def put(*capability: int) -> torch.device:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr(cuda_library, "built", lambda name: cuda_library.PACKAGE / name)
        return torch.device("cuda")

    return put


TILES = FORMATS["gathered"].from_dense(torch.ones(256, 128), torch.ones(256, 128, dtype=torch.bool), tile=128)


@pytest.mark.parametrize(
    ("m", "dtype", "kernels"),
    [
        (512, torch.float16, {"gathered_triton"}),
        (64, torch.bfloat16, {"gathered_triton", "gathered_small_m"}),
        (512, torch.float32, {"gathered_triton", "gathered_simt"}),
    ],
)
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_kernels_of_other_gpus(gpu, capability, m, dtype, kernels):
    found = find(TILES, Problem(m, 128, 256, dtype, gpu(*capability)))
    assert {kernel.name for kernel in found.usable} == {"gathered_reference"} | kernels
    if dtype != torch.float32:
        reason = "needs wgmma, which compute capability 9.0 alone has, this GPU has {}.{}".format(*capability)
        assert found.unsupported["gathered_sm90"] == reason


def test_kernels_of_triton_alone(gpu, monkeypatch):
    """As on a GPU before Hopper without nvcc: neither CUDA libraries nor packages for Hopper, on a machine that has all."""
    problem = Problem(64, 128, 256, torch.float16, gpu(9, 0))
    assert "gathered_sm90" in [kernel.name for kernel in find(TILES, problem).usable]
    monkeypatch.setenv("SPARSEFRONT_KERNELS", "triton")
    found = find(TILES, problem)
    assert [kernel.name for kernel in found.usable] == ["gathered_reference", "gathered_triton"]
    assert found.unsupported["gathered_sm90"] == "SPARSEFRONT_KERNELS=triton leaves CUDA libraries out"
    reason = "SPARSEFRONT_KERNELS=triton leaves out what needs compute capability 9.0"
    assert find(TILES, replace(problem, layout="feature_major")).unsupported["gathered_quack"] == reason
    x = torch.randn(5, 128)  # in Triton's interpreter, on a CPU
    (kernel,) = (one for one in find(TILES, Problem(5, 128, 256, torch.float32, CPU)).usable if one.requires_cuda)
    torch.testing.assert_close(kernel.run(x, kernel.pack(TILES)), x @ TILES.to_dense().t(), rtol=1e-4, atol=1e-4)
    monkeypatch.setenv("SPARSEFRONT_KERNELS", "cuda")
    with pytest.raises(ValueError, match="SPARSEFRONT_KERNELS=cuda: is triton, or unset for all kernels"):
        find(TILES, problem)
