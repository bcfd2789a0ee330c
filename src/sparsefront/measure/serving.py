"""Latency as a service sees it (`measure.mode=serve`): an open loop of requests with dynamic batching; and joules by NVML.

Requests arrive at random (Poisson) whether or not the server keeps up, so a latency counts from the arrival and includes the
wait. The server is a thread of this process, without a network.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, quantiles
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.gpu import energy_counter, exclusive, share_gpu
from sparsefront.measure.execution_mode import call_in_mode
from sparsefront.measure.fastest import Execution
from sparsefront.measure.problems import LENGTH_MULTIPLE, TOKENS
from sparsefront.measure.settings import FEWEST_REQUESTS, Measure
from sparsefront.progress import counted

log = logging.getLogger(__name__)
GIVE_UP = 10.0  # a server is overloaded once a request waited for this many p99 targets, and for at least a second
IDLE_S, STEADY_S = 1.0, 2.0  # of the energy counter, which advances every few dozen milliseconds


@dataclass(frozen=True)
class Request:
    """A sample that arrives at a time, in seconds after the start, with its number of tokens (None for images)."""

    arrival_s: float
    length: int | None = None


@dataclass(frozen=True)
class Served:
    """Latencies at one rate, in milliseconds from the arrival to the output; None and the reason where the queue grew."""

    rate: float
    requests: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    served_per_s: float | None = None
    mean_batch: float | None = None
    not_reached: str | None = None


def poisson(rate: float, seconds: float, lengths: Sequence[int | None], seed: int) -> Iterator[Request]:
    """Requests of an open loop, drawn as they are needed: at a rate out of reach most never are.

    Args:
        rate: requests per second on average.
        lengths: of the data's samples, drawn from.
    """
    draw, at = random.Random(seed), 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        yield Request(at, draw.choice(lengths))


def serve(
    run: Callable[[Sequence[Request]], Any],
    requests: Iterable[Request],
    *,
    rate: float,
    largest_batch: int,
    wait_s: float,
    give_up_s: float,
) -> Served:
    """Serve requests in batches: a batch starts when it is full, or when its oldest request has waited.

    Args:
        run: runs a batch and returns when its outputs are there.
        wait_s: for a fuller batch.
        give_up_s: a longer wait of a request means that the server cannot keep up; the rest is not served.
    """
    queue: deque[Request] = deque()
    changed = threading.Condition()
    latencies: list[float] = []
    batches: list[int] = []
    state: dict[str, Any] = {"closed": False, "error": None, "overloaded": None}
    arrived = 0
    start = time.perf_counter()

    def now() -> float:
        return time.perf_counter() - start

    def server() -> None:
        try:
            while batch := next_batch():
                run(batch)
                latencies.extend(now() - request.arrival_s for request in batch)
                batches.append(len(batch))
                if latencies[-len(batch)] > give_up_s:
                    state["overloaded"] = latencies[-len(batch)]
                    return
        except BaseException as error:  # raised again in the caller's thread
            state["error"] = error

    def next_batch() -> list[Request]:
        with changed:
            changed.wait_for(lambda: queue or state["closed"])
            if queue:
                changed.wait_for(
                    lambda: len(queue) >= largest_batch or state["closed"],
                    timeout=max(0.0, queue[0].arrival_s + wait_s - now()),
                )
            return [queue.popleft() for _ in range(min(largest_batch, len(queue)))]

    thread = threading.Thread(target=server, daemon=True)
    thread.start()
    for request in requests:
        early = request.arrival_s - now()
        if early > 0:
            time.sleep(early)
        if not thread.is_alive():
            break
        with changed:
            queue.append(request)
            changed.notify()
        arrived += 1
    with changed:
        state["closed"] = True
        changed.notify()
    thread.join()
    if state["error"] is not None:
        raise state["error"]
    if state["overloaded"] is not None:
        why = f"the queue grew: a request waited {state['overloaded'] * 1e3:.0f} ms, {len(queue)} were left"
        return Served(rate, arrived, not_reached=why)
    if arrived < FEWEST_REQUESTS:
        why = f"{counted(arrived, 'request')} of {FEWEST_REQUESTS} that a p99 needs: raise measure.serve_seconds"
        return Served(rate, arrived, not_reached=why)
    cuts = [1e3 * cut for cut in quantiles(latencies, n=100)]
    return Served(rate, arrived, cuts[49], cuts[94], cuts[98], len(latencies) / now(), mean(batches))


def serve_networks(
    ways: Mapping[str, tuple[nn.Module, Execution]],
    inputs: Mapping[str, Tensor],
    lengths: Sequence[int | None],
    settings: Measure,
) -> dict[str, Any]:
    """Serve networks in turn, rate by rate, for the file serving.json next to a result.

    Each network runs in its fastest uncompiled execution mode, recorded for batches of 1, 2, 4, ... and lengths in multiples
    of 64; batches are padded to the next of them, and inputs are copied from the host.

    Args:
        ways: "dense", "dense_low" or "sparse" -> the network and its fastest execution at the fixed size.
        inputs: a batch of `settings.batch_size`, the largest.
        lengths: tokens of the data's samples.
    """
    device = next(iter(inputs.values())).device
    sides: dict[str, Any] = {}
    with share_gpu(device):
        runs = {
            side: PaddedBatches(net, execution, inputs, lengths, settings) for side, (net, execution) in ways.items()
        }
    for side, run in runs.items():
        with exclusive(device):
            energy = joules(run.call_largest, device)
        sides[side] = {"execution_mode": run.mode, "samples_of_energy": run.rows[-1], **energy, "rates": []}
    for rate in settings.rates:
        for side, run in runs.items():
            log.info("measure: serving %s at %g requests/s for %g s", side, rate, settings.serve_seconds)
            with exclusive(device):
                served = serve(
                    run,
                    poisson(rate, settings.serve_seconds, lengths, seed=0),
                    rate=rate,
                    largest_batch=run.rows[-1],
                    wait_s=settings.wait_ms / 1e3,
                    give_up_s=max(1.0, GIVE_UP * settings.p99_ms / 1e3),
                )
            if served.not_reached is not None:
                log.warning("measure: %s at %g requests/s: %s", side, rate, served.not_reached)
            sides[side]["rates"].append(asdict(served))
    for side in sides.values():
        within = [
            one["rate"] for one in side["rates"] if one["p99_ms"] is not None and one["p99_ms"] <= settings.p99_ms
        ]
        side["requests_per_s_at_p99"] = max(within, default=None)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    of_cpu = {} if gpu else {"note": "a CPU, where references run: says nothing about a GPU"}
    protocol = {name: getattr(settings, name) for name in ("rates", "wait_ms", "p99_ms", "serve_seconds")}
    return {"device": device.type, "gpu": gpu, **of_cpu, "largest_batch": settings.batch_sizes[0], **protocol, **sides}


class PaddedBatches:
    """Runs batches of any size up to the largest one, padded to sizes that were prepared.

    Attributes:
        mode: the execution mode.
        rows: prepared batch sizes.
        lengths: prepared numbers of tokens, [None] for images.
    """

    def __init__(
        self,
        net: nn.Module,
        execution: Execution,
        inputs: Mapping[str, Tensor],
        lengths: Sequence[int | None],
        settings: Measure,
    ) -> None:
        self.device, most = next(iter(inputs.values())).device, settings.batch_sizes[0]
        self.mode = "cuda_graph" if execution.fastest.name.endswith("cuda_graph") else "eager"
        self.rows = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
        rounded = {one if one is None else -(-one // LENGTH_MULTIPLE) * LENGTH_MULTIPLE for one in lengths}
        self.lengths = sorted(rounded, key=lambda one: one or 0)
        self._calls: dict[tuple[int, int | None], tuple[Callable[[], Any], dict[str, Tensor], dict[str, Tensor]]] = {}
        for rows in self.rows:
            for length in self.lengths:
                host = {name: _resize(name, value, rows, length) for name, value in inputs.items()}
                static = {name: value.to(self.device) for name, value in host.items()}
                self._calls[rows, length] = call_in_mode(self.mode, net, static), static, host
                self._calls[rows, length][0]()

    def __call__(self, batch: Sequence[Request]) -> None:
        rows = next(rows for rows in self.rows if rows >= len(batch))
        longest = max(((request.length or 0) for request in batch), default=0)
        length = next(length for length in self.lengths if length is None or length >= longest)
        call, static, host = self._calls[rows, length]
        if "attention_mask" in host:
            tokens = torch.tensor([request.length or 1 for request in batch] + [1] * (rows - len(batch)))
            host["attention_mask"] = (torch.arange(length or 1) < tokens[:, None]).to(host["attention_mask"].dtype)
        with torch.inference_mode():
            for name, value in host.items():
                static[name].copy_(value)
        call()
        self.finish()

    def call_largest(self) -> None:
        self._calls[self.rows[-1], self.lengths[-1]][0]()

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _resize(name: str, value: Tensor, rows: int, length: int | None) -> Tensor:
    """An input on the host for another number of rows and tokens, repeated where it is too small."""
    value = value.cpu()
    if value.dim() == 0:
        return value
    value = value.repeat(-(-rows // len(value)), *[1] * (value.dim() - 1))[:rows]
    if length is not None and name in TOKENS and value.dim() > 1:
        value = value.repeat(1, -(-length // value.shape[1]), *[1] * (value.dim() - 2))[:, :length]
    return value.contiguous()


def joules(call: Callable[[], Any], device: torch.device, *, seconds: float = STEADY_S) -> dict[str, Any]:
    """Energy of a steady replay: `joules_per_call`, `idle_watts`; both None, with `no_energy`, where it cannot be read.

    Args:
        call: one batch.
        seconds: at least this long.
    """
    unread = {"joules_per_call": None, "idle_watts": None}
    if device.type != "cuda":
        return unread | {"no_energy": "a CPU"}
    try:
        read = energy_counter(device)
        start, before = time.perf_counter(), read()
        time.sleep(IDLE_S)
        idle = (read() - before) / (time.perf_counter() - start)
        calls, start, before = 0, time.perf_counter(), read()
        while time.perf_counter() - start < seconds:
            call()
            torch.cuda.synchronize(device)
            calls += 1
        return {"joules_per_call": (read() - before) / calls, "idle_watts": idle, "no_energy": None}
    except (OSError, AttributeError, RuntimeError) as error:
        return unread | {"no_energy": str(error)}
