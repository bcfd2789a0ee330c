"""The Hopper kernel against float64 on a GPU of compute capability 9.0: shapes, launches, layouts, graphs."""

import random
import subprocess

import pytest
import torch
from sparsefront_kernels import FORMATS, Problem, cuda_library, entries, entry
from sparsefront_kernels.gathered import tuning
from sparsefront_kernels.gathered.aligned_operands import aligned_by_input
from sparsefront_kernels.gathered.cuda_spmm import launch_pairs_spmm
from sparsefront_kernels.gathered.pairs import pair_tables
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch._subclasses.fake_tensor import FakeTensorMode

ENTRIES = tuple(kernel.name for kernel in entries() if kernel.name.startswith("gathered_cuda"))


def draw_stored(case, dtype, device="cuda"):
    """A weight of random shape, tile, density and dropped outputs, on the GPU. case: random.Random."""
    n, k, tile = case.randint(1, 600), case.randint(1, 700), case.choice([4, 8, 16, 32, 64, 128, 192, 256])
    density, dropped = case.choice([0.0, 0.1, 0.3, 0.6, 1.0]), case.choice([0.0, 0.4])
    survivors = (torch.rand(n, device=device) >= dropped).nonzero().flatten()
    tiles = -(-len(survivors) // tile)
    mask = torch.zeros(n, k, dtype=torch.bool, device=device)
    share = (
        density * (0.5 + torch.rand(tiles, 1, device=device)) if density < 1 else torch.ones(tiles, 1, device=device)
    )
    mask[survivors] = (torch.rand(tiles, k, device=device) < share).repeat_interleave(tile, 0)[: len(survivors)]
    weight = torch.randn(n, k, device=device, dtype=dtype)
    return FORMATS["gathered"].from_dense(weight, mask, tile=tile, drop_empty_outputs=dropped > 0)


class TestWithoutGPU:
    def test_refuses_what_it_cannot_do(self):
        stored = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=24)
        problem = {"m": 8, "k": 8, "n": 48, "device": torch.device("cpu")}
        for name in ENTRIES:
            layout = entry(name).layout
            assert "not torch.float32" in entry(name).refusal(
                stored, Problem(dtype=torch.float32, layout=layout, **problem)
            )
            half = Problem(dtype=torch.float16, layout=layout, **problem)
            assert "not tiles of 24 outputs" in entry(name).refusal(stored, half)
            stored_64 = FORMATS["gathered"].from_dense(torch.randn(48, 8), torch.ones(48, 8, dtype=torch.bool), tile=64)
            assert "needs a CUDA device" in entry(name).refusal(stored_64, half)

    @pytest.mark.parametrize("kind", ["plain", "inside_nan", "transposed"])
    @pytest.mark.parametrize("m", [8, 13])
    def test_x_reaches_the_kernel_aligned(self, kind, m, activations):
        x = activations(Problem(m, 24, 1, torch.float16, "cpu", "feature_major"), kind)
        by_input = aligned_by_input(x, feature_major=True)
        assert by_input.stride(1) == 1 and by_input.data_ptr() % 16 == 0 and by_input.stride(0) % 8 == 0
        assert by_input.shape[1] % 8 == 0 and torch.equal(by_input[:, :m], x)
        assert (by_input.data_ptr() == x.data_ptr()) == (kind == "plain" and m == 8)

    @pytest.mark.parametrize("name", ENTRIES)
    def test_fake_kernel_gives_the_shape(self, name):
        kernel = entry(name)
        problem = Problem(5, 8, 64, torch.float32, "cpu", kernel.layout)
        tables = pair_tables(
            FORMATS["gathered"].from_dense(torch.randn(64, 8), torch.ones(64, 8, dtype=torch.bool), tile=64)
        )
        with FakeTensorMode(allow_non_fake_inputs=True):
            y = kernel.run(torch.empty(problem.x_shape), tables, None)
        assert y.shape == problem.y_shape

    def test_missing_compiler_is_named(self, monkeypatch):
        monkeypatch.setattr(cuda_library, "compiler", lambda: None)
        assert "nvcc" in cuda_library.refusal("gathered_spmm")
        with pytest.raises(cuda_library.BuildFailed, match="gathered_spmm: needs CUDA's compiler nvcc"):
            cuda_library.build("gathered_spmm")

    def test_sources_compile_and_no_product_waits_for_another(self, tmp_path):
        """The compiler warns where it makes tensor-core products wait for one another, or spills what it must not."""
        if cuda_library.compiler() is None:
            pytest.skip("nvcc is not installed")
        for name, source in cuda_library.SOURCES.items():
            command = [
                cuda_library.compiler(),
                *cuda_library.FLAGS,
                "-Xptxas=-v",
                "-o",
                str(tmp_path / name),
                str(source),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            assert "serialized" not in done.stderr

    def test_library_is_built_once(self, tmp_path, monkeypatch):
        if cuda_library.compiler() is None:
            pytest.skip("nvcc is not installed")
        monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
        (tmp_path / "trivial.cu").write_text('extern "C" int answer() { return 42; }')
        monkeypatch.setitem(cuda_library.SOURCES, "trivial", tmp_path / "trivial.cu")
        library = cuda_library.build("trivial")
        written = library.stat().st_mtime_ns
        assert cuda_library.build("trivial").stat().st_mtime_ns == written
        assert cuda_library.load("trivial").answer() == 42
        (tmp_path / "trivial.cu").write_text('extern "C" int answer() { return 43; }')
        assert cuda_library.build("trivial") != library

    def test_compiler_messages_reach_the_user(self, tmp_path, monkeypatch):
        if cuda_library.compiler() is None:
            pytest.skip("nvcc is not installed")
        monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
        (tmp_path / "broken.cu").write_text("this is no C++")
        monkeypatch.setitem(cuda_library.SOURCES, "broken", tmp_path / "broken.cu")
        with pytest.raises(cuda_library.BuildFailed, match="(?s)nvcc failed.*broken.cu"):
            cuda_library.build("broken")


@pytest.mark.gpu
class TestOnGPU:
    @pytest.fixture(autouse=True)
    def hopper(self):
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("needs a GPU of compute capability 9.0")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("seed", range(200))
    def test_random_problems(self, seed, dtype, activations, expected_product, assert_close, poisoned_memory):
        torch.manual_seed(seed)
        case = random.Random(seed)
        stored = draw_stored(case, dtype)
        n, k = stored.shape
        m = case.choice([1, 2, 7, 8, 13, 64, 100, 127, 256, 333])
        bias = case.choice([None, torch.randn(n, device="cuda"), torch.randn(n, device="cuda", dtype=dtype)])
        for name in ENTRIES:
            kernel = entry(name)
            x = activations(
                Problem(m, k, n, dtype, "cuda", kernel.layout), case.choice(["plain", "inside_nan", "transposed"])
            )
            with poisoned_memory():
                y = kernel.run(x, kernel.prepare(stored), bias)
            assert_close(y, expected_product(x, stored, bias, kernel.layout))

    @pytest.mark.parametrize("tile", [16, 32, 64, 128, 256])
    def test_every_launch_of_the_space(self, tile, assert_close):
        torch.manual_seed(tile)
        mask = (torch.rand(-(-640 // tile), 700, device="cuda") < 0.4).repeat_interleave(tile, 0)[:640]
        stored = FORMATS["gathered"].from_dense(
            torch.randn(640, 700, device="cuda", dtype=torch.float16), mask, tile=tile
        )
        tables = pair_tables(stored)
        bias = torch.randn(640, device="cuda")
        x = torch.randn(700, 1032, device="cuda", dtype=torch.float16)
        expected = stored.to_dense().double() @ x.double() + bias.double()[:, None]
        for launch in tuning.SPACE:
            y = torch.full((640, 1032), torch.nan, device="cuda", dtype=torch.float16)
            tensors = {name: getattr(tables, name) for name in ("panels", "steps", "pairs", "outputs", "steps_of_each")}
            launch_pairs_spmm(x, y, bias=bias, launch=launch, **tensors)
            assert_close(y, expected)

    def test_many_steps_and_items(self, assert_close):
        """Rings that go round often, blocks with several items of different length."""
        mask = (torch.rand(24, 5000, device="cuda") < torch.rand(24, 1, device="cuda")).repeat_interleave(128, 0)
        stored = FORMATS["gathered"].from_dense(
            torch.randn(3072, 5000, device="cuda", dtype=torch.float16), mask, tile=128
        )
        x = torch.randn(5000, 4096, device="cuda", dtype=torch.float16)
        y = entry("gathered_cuda_feature_major").run(x, pair_tables(stored), None)
        assert_close(y, stored.to_dense().double() @ x.double())

    def test_repeated_runs_give_the_same_bits(self):
        """A race would show as a result that changes."""
        mask = (torch.rand(8, 2000, device="cuda") < 0.3).repeat_interleave(64, 0)
        stored = FORMATS["gathered"].from_dense(
            torch.randn(512, 2000, device="cuda", dtype=torch.float16), mask, tile=64
        )
        tables = pair_tables(stored)
        x = torch.randn(2000, 512, device="cuda", dtype=torch.float16)
        tensors = {name: getattr(tables, name) for name in ("panels", "steps", "pairs", "outputs", "steps_of_each")}
        for launch in tuning.SPACE:
            first = torch.empty(512, 512, device="cuda", dtype=torch.float16)
            launch_pairs_spmm(x, first, bias=None, launch=launch, **tensors)
            for _ in range(10):
                again = torch.full_like(first, torch.nan)
                launch_pairs_spmm(x, again, bias=None, launch=launch, **tensors)
                assert torch.equal(first, again), launch

    @pytest.mark.parametrize("name", ENTRIES)
    def test_op_as_pytorch_sees_it(self, name):
        stored = draw_stored(random.Random(5), torch.float16)
        kernel, (n, k) = entry(name), stored.shape
        tables = kernel.prepare(stored)
        problem = Problem(16, k, n, torch.float16, "cuda", kernel.layout)
        x, residual = (
            torch.randn(shape, device="cuda", dtype=torch.float16) for shape in (problem.x_shape, problem.y_shape)
        )
        weight = (tables.panels, tables.steps, tables.pairs, tables.outputs)
        numbers = (tables.steps_of_each, tables.whole_runs, n, k)
        x_feature_major, y_feature_major = kernel.layout in X_FEATURE_MAJOR, kernel.layout in Y_FEATURE_MAJOR
        for added, activation in ((None, "none"), (residual, "gelu")):
            torch.library.opcheck(
                torch.ops.sparsefront.gathered_pairs_spmm.default,
                (x, *weight, None, added, *numbers, activation, x_feature_major, y_feature_major),
            )
        compiled = torch.compile(lambda x: torch.relu(kernel.run(x, tables, None)), fullgraph=True)
        torch.testing.assert_close(compiled(x), torch.relu(kernel.run(x, tables, None)), rtol=0, atol=0)
        empty = x[:, :0] if x_feature_major else x[:0]
        assert kernel.run(empty, tables, None).numel() == 0

    @pytest.mark.parametrize("name", ENTRIES)
    def test_graph_replay_equals_eager(self, name):
        stored = draw_stored(random.Random(7), torch.bfloat16)
        kernel, (_, k) = entry(name), stored.shape
        tables = kernel.prepare(stored)
        shape = Problem(72, k, stored.shape[0], torch.bfloat16, "cuda", kernel.layout).x_shape
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        kernel.run(x, tables, None)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = kernel.run(x, tables, None)
        x.copy_(torch.randn_like(x))
        y.fill_(torch.nan)
        graph.replay()
        assert torch.equal(y, kernel.run(x, tables, None))

    def test_runs_on_the_current_stream(self):
        stored = draw_stored(random.Random(9), torch.float16)
        tables = pair_tables(stored)
        kernel = entry("gathered_cuda_feature_major")
        x = torch.randn(stored.shape[1], 64, device="cuda", dtype=torch.float16)
        expected = kernel.run(x, tables, None)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            late = torch.full_like(x, torch.nan)
            torch.cuda._sleep(50_000_000)
            late.copy_(x)
            y = kernel.run(late, tables, None)
        side.synchronize()
        assert torch.equal(y, expected)

    def test_more_than_two_to_the_31_elements(self, assert_close):
        mask = torch.zeros(128, 4096, dtype=torch.bool, device="cuda")
        mask[:, ::8] = True
        stored = FORMATS["gathered"].from_dense(
            torch.randn(128, 4096, device="cuda", dtype=torch.float16), mask, tile=128
        )
        x = torch.randn(4096, 2**19 + 64, device="cuda", dtype=torch.float16)
        y = entry("gathered_cuda_feature_major").run(x, pair_tables(stored), None)
        for columns in (slice(0, 64), slice(-64, None)):
            assert_close(y[:, columns], stored.to_dense().double() @ x[:, columns].double())
