"""What may be asked of group kernel, and what a forced kernel is told before anything is trained."""

import pytest
import torch
from sparsefront_kernels import labeled

from sparsefront.errors import InvalidSetting
from sparsefront.inference.choice import KernelChoice
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fastest"}, "mode=fastest: must be 'auto', 'sparse', 'none' or 'reference'"),
        ({"family": "bsr"}, "family=bsr: .* there are blocked, blocked_2_4, csr, dense, ell, gathered, "),
        ({"name": "gathered"}, "name=gathered: .* there are blocked_reference, .*gathered_reference, "),
        ({"name": "csr_sm90_row_to_feature"}, "csr_sm90 takes row_major, feature_major"),
        ({"name": "csr_torch", "family": "gathered"}, "name=csr_torch: is of family csr"),
        ({"mode": "none", "family": "csr"}, "family=csr: kernel=none swaps nothing in"),
        ({"mode": "reference", "name": "csr_torch"}, "name=csr_torch: is no reference"),
    ],
    ids=str,
)
def test_what_cannot_be_is_rejected(settings, message):
    with pytest.raises(InvalidSetting, match=message):
        KernelChoice(**settings)


@pytest.mark.parametrize(
    ("choice", "device", "kernel", "wanted"),
    [
        (KernelChoice(), CPU, "gathered_reference", True),
        (KernelChoice("sparse"), CPU, "gathered_reference", True),
        (KernelChoice(), CPU, "csr_reference", False),
        (KernelChoice(), CPU, "gathered_triton", False),
        (KernelChoice(), CUDA, "gathered_reference", False),
        (KernelChoice(), CUDA, "gathered_triton", True),
        (KernelChoice(), CUDA, "gathered_triton_feature_major", True),
        (KernelChoice(), CUDA, "gathered_triton_row_to_feature", False),
        (KernelChoice(family="gathered"), CUDA, "gathered_sm90_feature_to_row", False),
        (KernelChoice(name="gathered_sm90_feature_to_row"), CUDA, "gathered_sm90_feature_to_row", True),
        (KernelChoice(name="gathered_sm90_feature_major"), CUDA, "gathered_sm90", False),
        (KernelChoice(name="gathered_sm90"), CUDA, "gathered_sm90", True),
        (KernelChoice(name="gathered_sm90"), CUDA, "gathered_sm90_feature_major", True),
        (KernelChoice(name="gathered_sm90"), CUDA, "gathered_sm90_feature_to_row", False),
        (KernelChoice(name="gathered_sm90_row_major"), CUDA, "gathered_sm90", True),
        (KernelChoice(name="gathered_sm90_row_major"), CUDA, "gathered_sm90_feature_major", False),
        (KernelChoice(), CUDA, "csr_torch", True),
        (KernelChoice(), CUDA, "blocked_triton", False),
        (KernelChoice("reference"), CUDA, "gathered_reference", True),
        (KernelChoice("reference"), CUDA, "gathered_triton", False),
        (KernelChoice(family="csr"), CUDA, "csr_torch", True),
        (KernelChoice(family="csr"), CUDA, "gathered_triton", False),
        (KernelChoice(family="csr"), CPU, "csr_reference", True),
        (KernelChoice(name="gathered_triton"), CPU, "gathered_triton", True),
    ],
    ids=str,
)
def test_kernels_of_a_gathered_layer(choice, device, kernel, wanted):
    named, layout = labeled(kernel)
    assert choice.wants(named, layout or "row_major", "gathered", device) is wanted


def test_dense_may_win_where_unforced():
    assert KernelChoice().dense_allowed
    assert not any(choice.dense_allowed for choice in (KernelChoice("sparse"), KernelChoice(family="csr")))
    assert KernelChoice("none").swaps_nothing and KernelChoice(name="dense_linear").swaps_nothing


def ask(choice, pattern, device=CPU, shapes=None):
    shapes = shapes or {"fc": (32, 64)}
    choice.check_against(pattern=pattern, sparsity=0.5, shapes=shapes, device=device, dtype=torch.float32)


@WITHOUT_GPU
def test_triton_on_a_cpu_is_rejected(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(InvalidSetting, match="name=gathered_triton: cannot run with .* on cpu: .*CUDA device"):
        ask(KernelChoice(name="gathered_triton"), TileWise(16))


def test_family_of_another_pattern():
    with pytest.raises(InvalidSetting, match="family=blocked: .* stored as gathered, .*, not as blocked"):
        ask(KernelChoice(family="blocked"), TileWise(16))


def test_mask_beyond_the_family():
    ask(KernelChoice(family="semi_structured"), NM(2, 4))
    with pytest.raises(InvalidSetting, match="family=semi_structured"):
        ask(KernelChoice(family="semi_structured"), TileWise(16))
