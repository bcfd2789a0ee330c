"""Tables of the host on a device: complete before they are read, in no graph's memory."""

import functools
import gc
import multiprocessing
import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.blocked import fp8_sm90, pieces
from sparsefront_kernels.blocked import sm90 as blocked
from sparsefront_kernels.cuda import host_tables
from sparsefront_kernels.cuda.host_tables import keep_for_graphs, on_device
from sparsefront_kernels.gathered import sm90 as gathered
from sparsefront_kernels.gathered import sm90_schedule
from sparsefront_kernels.gathered.sm90_schedule import ALL, schedule_tensors
from sparsefront_kernels.registry import entry

CPU = torch.device("cpu")
TABLE = torch.arange(1000, dtype=torch.int32)


def test_table_is_copied_by_a_thread(monkeypatch):
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
def test_schedule_is_one_host_table(kind, monkeypatch):
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


@pytest.mark.parametrize("recording", [False, True])
def test_tables_of_graphs_live_on(recording, monkeypatch):
    """And other tables as long as the cache, of two here, has them."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    cached, weight = functools.lru_cache(2)(schedule_tensors.__wrapped__), torch.zeros(3)
    tables = [weakref.ref(keep_for_graphs(weight, cached((4, 3), 64 * m, 7, ALL, CPU))[0]) for m in range(1, 5)]
    weight = weight[1:]  # another tensor in its memory
    gc.collect()
    assert [table() is not None for table in tables] == [recording, recording, True, True]
    del weight
    gc.collect()
    assert [table() is not None for table in tables] == [False, False, True, True]


def test_forked_process_copies_tables_itself(monkeypatch):
    """Nobody would answer the parent's: PyTorch's error, that CUDA cannot be used after a fork, would never be seen."""
    monkeypatch.setattr(host_tables, "_copied", lambda table, device: table)
    on_device(TABLE, torch.device("cuda"))
    child = multiprocessing.get_context("fork").Process(target=on_device, args=(TABLE, torch.device("cuda")))
    child.start()
    child.join(600)
    child.kill()
    assert child.exitcode == 0


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
    @pytest.mark.parametrize("name", ["gathered_sm90", "blocked_sm90", "blocked_fp8_sm90"])
    def test_graphs_outlive_a_cache_of_two(self, name, monkeypatch):
        for module, table in (
            (gathered, "schedule_tensors"),
            (gathered, "shared_tables"),
            (blocked, "schedule_tensors"),
            (blocked, "cut_tensors"),
            (fp8_sm90, "_work_tensors"),
            (fp8_sm90, "cut_tensors"),
        ):
            monkeypatch.setattr(module, table, functools.lru_cache(2)(getattr(module, table).__wrapped__))
        kept = torch.ones(1024, 1024) > 0
        kept[256:, 128:512] = False
        family, parameters = (
            ("gathered", {"tile": 128}) if name.startswith("gathered") else ("blocked", {"block": (128, 128)})
        )
        stored = FORMATS[family].from_dense(torch.randn(1024, 1024), kept, **parameters).to(self.DEVICE, torch.float16)
        kernel, x = entry(name), torch.randn(8192, 1024, device=self.DEVICE, dtype=torch.float16)
        packed, recorded = kernel.pack(stored), {}
        kernel.run(x, packed)
        for m in range(512, 8192, 512):
            expected, graph = kernel.run(x[:m], packed), torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = kernel.run(x[:m], packed)
            recorded[m] = graph, y, expected
        for m in range(256, 8192, 512):  # into the memory of evicted tables
            kernel.run(x[:m], packed)
            torch.cuda.synchronize()
        for graph, y, expected in recorded.values():
            y.fill_(torch.nan)
            graph.replay()
            assert torch.equal(y, expected)
