"""Every kernel of the registry on random problems, against float64, and every launch that tuning may choose."""

import os
from pathlib import Path

import pytest
import torch
from in_layout import SPACES, every_layout
from random_problems import OCCASIONS, WEIGHTS, draw
from sparsefront_kernels import cuda_library, families
from sparsefront_kernels.bench.correctness import poisoned_memory
from sparsefront_kernels.cuda import launch as cuda_launch
from sparsefront_kernels.tuning import store
from sparsefront_kernels.tuning.launches import forget_choices

TENS_ON_GPU, LARGEST = 8, 2500
LAUNCH_SEEDS = (0, 7, 1, 8, 2, 5, 9, 6, 30)  # of different occasions; those at odd places are large
GPU_KERNELS = [kernel for kernel in every_layout() if kernel.requires_cuda]
# a kernel of another family on a weight that is packed for it: its own entry has the other problems and the launches
FILLED = [kernel for kernel in GPU_KERNELS if "_filled_" in kernel.name]
TUNABLE = [kernel for kernel in GPU_KERNELS if kernel.tunable is not None and kernel not in FILLED]
BEFORE_HOPPER_TOO = [
    kernel
    for kernel in TUNABLE
    if kernel.kernel.name in cuda_library.SOURCES and kernel.kernel.name not in cuda_library.WGMMA
]
BEFORE_HOPPER = Path(__file__).parent / "csrc" / "before_hopper.cuh"
TENS = [(kernel, ten) for kernel in GPU_KERNELS for ten in range(2 if kernel in FILLED else TENS_ON_GPU)]
TENS.sort(key=lambda pair: (pair[0].family, pair[1]))  # kernels of a family share their weights


def faults(kernel, seeds, device, largest):
    """What is wrong with the kernel's results, by seed; skips where it supports none of them."""
    found, reasons = [], []
    for seed in seeds:
        drawn = draw(kernel, seed, device, largest=largest)
        if isinstance(drawn, str):
            reasons.append(drawn)
            continue
        with poisoned_memory():
            y = drawn.run()
        found.append(drawn.fault(y))
    if len(reasons) == len(seeds):
        pytest.skip(reasons[0])
    return [fault for fault in found if fault is not None]


@pytest.mark.parametrize("kernel", every_layout(), ids=lambda kernel: kernel.name)
def test_ten_random_problems(kernel):
    """On the CPU, where Triton kernels run interpreted."""
    if kernel.requires_cuda and torch.cuda.is_available():
        pytest.skip("the interpreter is off where there is a GPU")
    assert faults(kernel, range(len(OCCASIONS)), "cpu", 150) == []


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "ten"), TENS, ids=lambda part: getattr(part, "name", None))
def test_random_problems_on_a_gpu(kernel, ten):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert faults(kernel, range(10 * ten, 10 * ten + 10), "cuda", 600) == []


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", TUNABLE, ids=lambda kernel: kernel.name)
def test_every_launch_is_right_and_repeats(kernel):
    """Not only the fastest, which another GPU or shape may replace; a race would show as a result that changes.

    Each problem takes every third launch. With the transposed store cuSPARSELt's other algorithms are never offered.
    """
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    tried = set()
    for turn, seed in enumerate(LAUNCH_SEEDS):
        drawn = draw(kernel, seed, "cuda", largest=LARGEST if turn % 2 else 600)
        if isinstance(drawn, str):
            pytest.skip(drawn)
        every, expected = kernel.launches(drawn.packed, drawn.problem), drawn.expected()
        for launch in every[turn % 3 :: 3] or every[:1]:
            kernel.tunable.try_out(drawn.packed, drawn.problem, launch)
            with poisoned_memory():
                y, again = drawn.run(), drawn.run()
            kernel.tunable.end_trial(drawn.packed, drawn.problem)
            assert drawn.fault(y, expected) is None, launch
            assert kernel.kernel.name not in SPACES or torch.equal(y, again), launch
            tried.add(launch)
    assert len(tried) > 1 or kernel.name == "semi_structured_torch_feature_to_row"


@pytest.fixture(scope="module")
def gpu_before_hopper(folder_of_all):
    """Code for compute capability 8.0, assembled for this GPU; nothing was measured. All workers share its libraries."""
    if not torch.cuda.is_available() or cuda_library.compiler() is None:
        pytest.skip("needs a CUDA device and nvcc")
    from triton.runtime import driver

    assert driver.active is not None  # it keeps the function that tells the compute capability
    folder = folder_of_all / "before_hopper"
    appended = f"{os.environ.get('NVCC_APPEND_FLAGS', '')} -include {BEFORE_HOPPER}"
    caches = (cuda_library.load, cuda_library.gpu_architectures, cuda_launch._function, cuda_launch.gpu_limits)
    caches += (cuda_launch.supports_pdl, store.tuned_kernel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVCC_APPEND_FLAGS", appended.strip())
        patch.setenv("SPARSEFRONT_KERNELS_CACHE", str(folder))
        patch.setattr(cuda_library, "PREBUILT", folder / "prebuilt")
        # the driver would translate a whole library alone, for a minute
        patch.setattr(cuda_library, "_flags", lambda *_: (*cuda_library.FLAGS, "-gencode=arch=compute_80,code=sm_90"))
        patch.setattr(cuda_library, "_toolchain_reason", lambda: None)
        patch.setattr(store, "SHIPPED", folder / "shipped")
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
        for cache in caches:
            cache.cache_clear()
        forget_choices()
        yield
    for cache in caches:
        cache.cache_clear()
    forget_choices()


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", BEFORE_HOPPER_TOO, ids=lambda kernel: kernel.name)
def test_code_for_gpus_before_hopper(kernel, gpu_before_hopper):
    """Bulk copies in pieces, blocks without clusters, and launches that leave less shared memory unused."""
    tried = 0
    for seed in range(len(OCCASIONS)):
        drawn = draw(kernel, seed, "cuda", largest=600)
        if isinstance(drawn, str):
            continue
        expected = drawn.expected()
        for candidate in list(kernel.tunable.candidates(drawn.packed, drawn.problem))[:6]:
            assert getattr(candidate, "splits", 1) == 1
            kernel.tunable.try_out(drawn.packed, drawn.problem, candidate)
            with poisoned_memory():
                y, again = drawn.run(), drawn.run()
            kernel.tunable.end_trial(drawn.packed, drawn.problem)
            assert drawn.fault(y, expected) is None and torch.equal(y, again), candidate
            tried += 1
    assert tried > 0


def test_every_family_is_drawn():
    assert set(WEIGHTS) == set(families())
