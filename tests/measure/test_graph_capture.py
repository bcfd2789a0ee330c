"""What is recorded, and on which device, with devices and streams that are made up as torch has them."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch

from sparsefront.measure import graph_capture
from sparsefront.measure.graph_capture import CopiedBefore, _ConstantsViaCpu, record
from sparsefront.training import graphs


class Devices:
    """Two GPUs: work that is launched goes to the current stream of its device, and into a graph that records this stream."""

    def __init__(self):
        self.device, self.streams, self.graphs, self.waits = 0, {}, {}, []
        self.streams |= {index: self.Stream() for index in range(2)}
        for index, stream in self.streams.items():
            stream.device = index
        self.default_capture_stream = None

    def Stream(self, device=None):
        return Stream(self, self.device if device is None else device)

    def CUDAGraph(self):
        return []

    def current_device(self):
        return self.device

    def current_stream(self):
        return self.streams[self.device]

    def synchronize(self):
        self.waits.append(("synchronize", self.device))

    @contextmanager
    def at(self, device):
        before, self.device = self.device, self.device if device.index is None else device.index
        yield
        self.device = before

    @contextmanager
    def stream(self, stream):
        before = self.device, self.streams[stream.device]
        self.device, self.streams[stream.device] = stream.device, stream
        try:
            yield
        finally:
            self.device, self.streams[stream.device] = before

    @contextmanager
    def graph(self, graph, pool=None, stream=None, capture_error_mode="global"):
        """Without a stream, one that belongs to the device of the first recording."""
        if stream is None:
            stream = self.default_capture_stream = self.default_capture_stream or self.Stream()
        with self.stream(stream):
            self.graphs[stream] = graph
            try:
                yield
            finally:
                del self.graphs[stream]

    def launch(self, work, device):
        self.graphs.get(self.streams[device], []).append(work)
        return work


class Stream:
    def __init__(self, devices, device):
        self.devices, self.device = devices, device

    def wait_stream(self, other):
        assert self.device == other.device
        self.devices.waits.append((self, other))


@pytest.fixture
def devices(monkeypatch):
    made = Devices()
    for name in ("Stream", "CUDAGraph", "current_device", "current_stream", "synchronize", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(torch.cuda, "device", made.at)
    monkeypatch.setattr(graphs, "end_rng_capture", lambda: made.waits.append("random"))
    graphs._capture_stream.cache_clear()
    yield made
    graphs._capture_stream.cache_clear()


def test_a_second_device_is_recorded_too(devices):
    """Also where another one is current, and one has been recorded before."""
    for index in (0, 1, 0, 1):
        call = partial(devices.launch, "work", index)
        graph, outputs = record([call], device=torch.device("cuda", index), warmup=2)
        assert graph == outputs == ["work"], f"cuda:{index}"
        assert devices.device == 0


def test_warm_up_waits_for_work(devices):
    """Warm-ups are on a stream of their own, so that a library's workspace of the recording lies in the graph's memory."""
    seen, current = [], devices.streams[1]
    record([lambda: seen.append(devices.current_stream())], device=torch.device("cuda", 1), warmup=1)
    warm_up, recording = seen
    assert len({warm_up, recording, current}) == 3
    assert devices.waits == [(warm_up, current), (current, warm_up), ("synchronize", 1)]
    record([lambda: seen.append(devices.current_stream())], device=torch.device("cuda", 1), warmup=0)
    assert seen[-1] is recording, "of each device one"


def test_failed_recording_leaves_random_numbers(devices):
    current = dict(devices.streams)

    def fails():
        if devices.graphs:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        record([fails], device=torch.device("cuda", 1), warmup=1)
    assert devices.streams == current and devices.waits[-1] == "random"
    devices.waits.clear()
    with pytest.raises(RuntimeError, match="not permitted"):  # of a training or an evaluation
        graphs.record(fails, None)
    assert devices.streams == current and devices.waits == ["random"]


@pytest.mark.parametrize("inference", [False, True])
def test_positions_are_copied_before(inference):
    """To a device without memory, as a recording allows no copy; inference mode does not take `to` apart by itself."""

    def counted(start):
        there = (torch.arange(3) + start).to("meta")
        written = torch.empty(3, dtype=torch.int64, device="meta").copy_(torch.arange(3))
        return there, written, torch.tensor(0.5, device="meta")

    with torch.inference_mode(inference), CopiedBefore() as copies, _ConstantsViaCpu():
        counted(0)
        copies.recording = True
        assert [tensor.device.type for tensor in counted(0)] == ["meta"] * 3
        assert len(copies.copies) == 3
        with pytest.raises(RuntimeError, match="copies other values from the processor at each call"):
            counted(0)
    with torch.inference_mode(inference), CopiedBefore() as copies, pytest.raises(RuntimeError, match="other values"):
        counted(0)
        copies.recording = True
        counted(1)


def test_recording_without_copies_is_repeated(monkeypatch):
    tried = []

    def recorded(calls, device, warmup, copies=None):
        tried.append(copies)
        if copies is None:
            raise RuntimeError(f"{graph_capture.COPIES} unless the CPU tensor is pinned.")
        return "graph", []

    monkeypatch.setattr(graph_capture, "_record", recorded)
    cuda = torch.device("cuda")
    assert record([], device=cuda, warmup=3, eager=True) == ("graph", [])
    assert tried[0] is None and isinstance(tried[1], CopiedBefore)
    with pytest.raises(RuntimeError, match="Cannot copy"):  # of compiled code
        record([], device=cuda, warmup=3)


@pytest.mark.gpu
@pytest.mark.parametrize("inference", [False, True])
def test_replays_read_what_was_copied_before(inference):
    x = torch.ones(3, device="cuda")

    def call():
        return x + (torch.arange(3) * 2).to(x.device) + torch.tensor(0.0, device=x.device)

    with torch.inference_mode(inference):
        graph, (y,) = record([call], device=x.device, warmup=2, eager=True)
    rest = [torch.full((3,), 9, device="cuda") for _ in range(64)]  # what lies where a copy was that is gone
    x.fill_(5.0)
    graph.replay()
    assert y.tolist() == [5.0, 7.0, 9.0] and len(rest) == 64
