"""What CUDA kernels are given: packed weights, operands that were checked, launches of their space. Nothing needs a GPU."""

import itertools

import pytest
import torch
from in_layout import InLayout, assert_names_wrong_operands
from random_problems import OCCASIONS, RandomProblem, draw, laid_out
from sparsefront_kernels import entry
from sparsefront_kernels.blocked import sm90 as blocked
from sparsefront_kernels.cuda import thread_per_output, thread_per_row
from sparsefront_kernels.cuda.launch import GpuLimits
from sparsefront_kernels.gathered import indexed, quack, simt, sm90, small_m
from sparsefront_kernels.operands import aligned_by_input, aligned_like
from sparsefront_kernels.problem import X_FEATURE_MAJOR
from sparsefront_kernels.tuning import launches
from torch._subclasses.fake_tensor import FakeTensorMode

# kernel -> the module that asks for a GPU, and what unpacks the weight, if anything does
KERNELS = {
    "gathered_sm90": (sm90, sm90.dense_weight),
    "gathered_2_4_sm90": (sm90, sm90.dense_weight),
    "gathered_simt": (simt, simt.dense_weight),
    "gathered_indexed": (indexed, indexed.dense_weight),
    "gathered_small_m": (small_m, small_m.dense_weight),
    "gathered_quack": (quack, quack.dense_weight),
    "blocked_sm90": (blocked, blocked.dense_weight),
    "blocked_2_4_sm90": (blocked, blocked.dense_weight),
    "dense_sm90": (blocked, blocked.dense_weight),
    "n_m_mma": (thread_per_output, None),
    "n_m_small_m": (thread_per_output, None),
    "ell_small_m": (thread_per_output, None),
    "n_m_sm90": (thread_per_row, None),
    "ell_sm90": (thread_per_row, None),
    "csr_sm90": (thread_per_row, None),
}
SEEDS = range(len(OCCASIONS))
TUNABLE = [name for name in KERNELS if entry(name).tunable is not None]


@pytest.fixture
def problems(monkeypatch):
    """problems(name, layout, seeds) -> random problems on the CPU, as if this were a GPU of 132 SMs that runs the kernel."""

    def make(name: str, layout: str | None = None, seeds=SEEDS) -> list[RandomProblem]:
        module, _ = KERNELS[name]
        if module is quack:
            monkeypatch.setattr(
                quack, "problem_unsupported_reason", lambda one: None if one.dtype.itemsize == 2 else "16 bits"
            )
        else:
            monkeypatch.setattr(module, "library_unsupported_reason", lambda problem, library: None)
        monkeypatch.setattr(launches, "num_sms", lambda device: 132)
        kernel = InLayout(entry(name), layout or entry(name).layouts[0])
        drawn = [draw(kernel, seed, "cpu", largest=300) for seed in seeds]
        assert all(isinstance(one, RandomProblem) for one in drawn), drawn
        return drawn

    return make


@pytest.mark.parametrize("name", KERNELS)
def test_packed_weight_is_the_stored_one(name, problems):
    """Where nothing unpacks it, at least no weight is lost or doubled."""
    unpack = KERNELS[name][1]
    for one in problems(name, seeds=(*SEEDS, *range(10, 20))):
        dense = one.stored.to_dense()
        if unpack is not None:
            assert torch.equal(unpack(one.packed), dense), one.says
            continue
        packed, stored = (values[values != 0].sort().values for values in (one.packed.values, dense))
        assert torch.equal(packed, stored), one.says


@pytest.mark.parametrize(
    ("name", "layout"), [(name, layout) for name in KERNELS for layout in entry(name).layouts], ids=str
)
def test_outputs_have_their_shape(name, layout, problems):
    (one,) = problems(name, layout, seeds=[3])
    empty = one.x.narrow(1 if layout in X_FEATURE_MAJOR else 0, 0, 0)
    assert one.kernel.run(empty, one.packed, one.bias).numel() == 0
    with FakeTensorMode(allow_non_fake_inputs=True):
        y = one.kernel.run(torch.empty(one.problem.x_shape, dtype=one.x.dtype), one.packed, None)
    assert (y.shape, y.dtype) == (one.problem.y_shape, one.x.dtype)


@pytest.mark.parametrize("name", KERNELS)
def test_wrong_operands_are_named(name, problems):
    (one,) = problems(name, seeds=[3])
    assert_names_wrong_operands(one.kernel, one.x, one.packed, one.problem.n)


@pytest.mark.parametrize("name", TUNABLE)
def test_candidates_are_few_and_possible(name, problems, nothing_tuned):
    for one in problems(name):
        tunable = one.kernel.tunable
        chosen, space = list(tunable.candidates(one.packed, one.problem)), one.kernel.launches(one.packed, one.problem)
        assert 0 < len(chosen) <= 24 and len(set(chosen)) == len(chosen)
        assert {_without_start(launch) for launch in chosen} <= {_without_start(launch) for launch in space}, one.says
        assert _without_start(tunable.launch(one.packed, one.problem)) in map(_without_start, space)


# kernel -> (launch, described problem, packed weight, limits) -> shared memory of a block
SHARED_BYTES = {
    "gathered_simt": lambda launch, described, packed, limits: launch.shared_bytes(packed.width) - 1024,
    "gathered_indexed": lambda launch, described, packed, limits: (
        768 + launch.stages(packed.most_steps, limits) * (256 * launch.block_m + 16 + 528 * packed.most_steps)
    ),
    "gathered_small_m": lambda launch, described, packed, limits: launch.shared_bytes(
        described.m, described.width, described.element_bytes, described.most_chunks
    ),
    **dict.fromkeys(
        ("n_m_mma", "n_m_small_m", "ell_small_m"),
        lambda launch, described, packed, limits: thread_per_output.segments(described, launch, limits).shared_bytes,
    ),
    **dict.fromkeys(
        ("n_m_sm90", "ell_sm90", "csr_sm90"),
        lambda launch, described, packed, limits: thread_per_row.shared_bytes(described, launch),
    ),
}


@pytest.mark.parametrize("name", SHARED_BYTES)
def test_launches_fit_other_gpus(name, problems, nothing_tuned, monkeypatch):
    """A100, 4090 and 5090: less shared memory, and before compute capability 9.0 no clusters."""
    for limits in (GpuLimits(166_912, clusters=False), GpuLimits(101_376, clusters=False), GpuLimits(101_376)):
        monkeypatch.setattr(launches, "gpu_limits", lambda device, limits=limits: limits)
        for one in problems(name):
            tunable, packed = one.kernel.tunable, one.packed
            described = tunable.describe(packed, one.problem)
            chosen = [*tunable.candidates(packed, one.problem), tunable.launch(packed, one.problem)]
            assert all(launch.splits == 1 or limits.clusters for launch in chosen), one.says
            most = max(SHARED_BYTES[name](launch, described, packed, limits) for launch in chosen)
            assert most <= limits.block_bytes, one.says


def _without_start(launch) -> tuple:
    """A launch but for how it starts behind the kernel before it, and in which order it goes through tiles."""
    free = ("pdl", "dependent_launch", "raster_swizzle")
    return tuple((name, value) for name, value in vars(launch).items() if name not in free)


def test_operands_reach_aligned_rows():
    """X by input and residuals, whatever their strides; what is aligned already is not copied."""
    kinds = ("plain", "inside_nan", "transposed")
    for kind, (dtype, m, padded) in itertools.product(
        kinds, [(torch.float32, 12, 12), (torch.float32, 13, 16), (torch.float16, 12, 16)]
    ):
        x = laid_out(torch.randn(24, m).to(dtype), kind)
        rows = aligned_by_input(x, feature_major=True)
        assert rows.shape == (24, padded) and torch.equal(rows[:, :m], x)
        assert rows.stride(1) == 1 and rows.data_ptr() % 16 == rows.stride(0) * dtype.itemsize % 16 == 0
        assert (rows.data_ptr() == x.data_ptr()) == (kind == "plain" and m == padded)
    target, residual = torch.empty(5, 8), torch.randn(5, 9)[:, 1:]
    copy = aligned_like(target, residual)
    assert copy.data_ptr() % 16 == 0 and torch.equal(copy, residual) and aligned_like(target, copy) is copy
    assert torch.equal(aligned_like(target, residual[:, :5])[:, :5], residual[:, :5])
