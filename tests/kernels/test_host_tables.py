"""Tables of the host on a device: complete before they are read, in no graph's memory."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.blocked import fp8_sm90, pieces
from sparsefront_kernels.blocked import sm90 as blocked
from sparsefront_kernels.common import host_tables
from sparsefront_kernels.common.host_tables import on_device
from sparsefront_kernels.gathered import sm90_schedule
from sparsefront_kernels.gathered.sm90_schedule import ALL, schedule_tensors
from sparsefront_kernels.registry import entry

CPU = torch.device("cpu")
TABLE = torch.arange(1000, dtype=torch.int32)


def test_a_table_is_copied_on_a_stream_of_its_own_by_a_thread_of_its_own(monkeypatch):
    """And whoever asks waits for it: any stream may read it then."""
    happened = []

    @contextmanager
    def on_stream(stream):
        happened.append(("begins", threading.current_thread() is not threading.main_thread()))
        yield
        happened.append("ends")

    stream = SimpleNamespace(synchronize=lambda: happened.append("waits"))
    monkeypatch.setattr(host_tables, "_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    table = SimpleNamespace(to=lambda device: happened.append(f"copies to {device}") or "there")
    assert on_device(table, torch.device("cuda", 3)) == "there"
    assert happened == [("begins", True), "copies to cuda:3", "waits", "ends"]


CUT = ((9, 4, 3, 0), 640, blocked.BlockedLaunch(1, cut=64), 2.0, False, 7)


@pytest.mark.parametrize("kind", ["whole", "cut", "fp8", "fp8 cut"])
def test_all_of_a_schedule_is_one_table_of_the_host(kind, monkeypatch):
    """No operation on the caller's stream makes a part of it, which a call on another stream might read too early."""
    copied = []
    for module in (sm90_schedule, pieces):
        monkeypatch.setattr(module, "on_device", lambda table, device: copied.append(table.device) or table)
    fp8 = ((4, 3), (0, 1, 2, 3)), fp8_sm90.BlockedFp8Launch(cut="cut" in kind)
    if "cut" in kind:
        cut_fp8 = fp8_sm90.cut_tensors.__wrapped__
        found = (
            cut_fp8(*fp8[0], 14, 640, fp8[1], 7, CPU) if "fp8" in kind else blocked.cut_tensors.__wrapped__(*CUT, CPU)
        )
        work, begins, firsts = found.work, found.begins, found.firsts
        fours, others = (work, firsts, found.cut), (begins, found.units)
    else:
        whole_fp8 = fp8_sm90._work_tensors.__wrapped__
        work, begins, firsts = (
            whole_fp8(*fp8[0], 640, 512, fp8[1], 7, CPU)
            if kind == "fp8"
            else schedule_tensors.__wrapped__((4, 3), 640, 7, ALL, CPU)
        )
        fours, others = (work, firsts), (begins,)
    assert copied == [CPU]
    assert len({part.untyped_storage().data_ptr() for part in (*fours, *others)}) == 1
    assert all(part.data_ptr() % 16 == work.data_ptr() % 16 for part in fours), "rows are read 16 bytes at once"
    assert torch.equal(firsts, work[begins[:-1].long()])


def test_the_default_device_does_not_matter():
    """A program may have set one: what the host makes stays on the host until it is copied."""

    def tables():
        found = blocked.cut_tensors.__wrapped__(*CUT, CPU)
        sm90_schedule._searched.cache_clear()
        return *schedule_tensors.__wrapped__((9, 4, 3, 0), 640, 7, ALL, CPU), found.work, found.units, found.cut

    expected = tables()
    with torch.device("meta"):
        found = tables()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; run pytest -m gpu on a GPU machine"
)


@pytest.mark.gpu
@gpu
class TestOnAGpu:
    DEVICE = torch.device("cuda", 0)

    def test_a_capture_may_ask_for_one(self):
        """Global, the strictest: no thread may do what is unsafe then."""
        x, graph = torch.zeros(1000, device=self.DEVICE, dtype=torch.int32), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            table = on_device(TABLE + 7, self.DEVICE)
            y = x + table
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y.cpu(), TABLE + 7)

    def test_it_is_in_no_pool(self):
        """Of those that a thread's allocations go to, as under `reduce-overhead`."""
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside, table = torch.empty(1000, device=self.DEVICE), on_device(TABLE, self.DEVICE)
        in_pool = [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot(pool.id)
        ]
        assert any(begin <= inside.data_ptr() < end for begin, end in in_pool)
        assert not any(begin <= table.data_ptr() < end for begin, end in in_pool)

    @pytest.mark.usefixtures("hopper", "nothing_tuned")
    @pytest.mark.parametrize("name", ["gathered_sm90", "blocked_sm90"])
    @pytest.mark.parametrize("m", [640, 4096])
    def test_the_first_call_may_be_captured(self, name, m):
        """With libraries loaded by a call of another number of rows, and never by one of these."""
        kept = torch.ones(1024, 512) > 0
        kept[256:, 64:192] = False
        family, parameters = (
            ("gathered", {"tile": 128}) if name.startswith("gathered") else ("blocked", {"block": (128, 64)})
        )
        stored = FORMATS[family].from_dense(torch.randn(1024, 512), kept, **parameters).to(self.DEVICE, torch.float16)
        kernel = entry(name)
        packed, x = kernel.pack(stored), torch.randn(m, 512, device=self.DEVICE, dtype=torch.float16)
        for others in (64, 4032, 128):
            kernel.run(x[:others], packed)
        torch.cuda.synchronize()
        schedule_tensors.cache_clear()
        blocked.cut_tensors.cache_clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = kernel.run(x, packed)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, kernel.run(x, packed))
        expected = x.double() @ stored.to_dense().double().t()
        assert ((y - expected).norm() / expected.norm()).item() < 2e-3

    @pytest.mark.usefixtures("hopper", "nothing_tuned")
    def test_under_reduce_overhead_the_tables_outlive_the_graphs(self):
        kept = (torch.rand(8, 512) < 0.5).repeat_interleave(128, 0)
        stored = FORMATS["gathered"].from_dense(torch.randn(1024, 512), kept, tile=128).to(self.DEVICE, torch.float16)
        kernel = entry("gathered_sm90")
        packed, x = kernel.pack(stored), torch.randn(4096, 512, device=self.DEVICE, dtype=torch.float16)
        schedule_tensors.cache_clear()
        compiled = torch.compile(lambda x: kernel.run(x, packed).relu(), mode="reduce-overhead")
        expected = kernel.run(x[:4032], packed).relu(), (x @ stored.to_dense().t()).relu()
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            y = compiled(x).clone()
            torch.randn(4096, 1024, device=self.DEVICE)
        assert torch.equal(kernel.run(x, packed).relu(), y) and torch.isfinite(expected[0]).all()
        assert ((y - expected[1]).float().norm() / expected[1].float().norm()).item() < 3e-3
