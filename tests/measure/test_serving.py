"""`measure.mode=serve`: an open loop with dynamic batching, and energy."""

import json
import re
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from sparsefront.gpu import _TOO_SMALL as TOO_SMALL
from sparsefront.gpu import EnergyMeter
from sparsefront.measure.execution_mode import FastestMode
from sparsefront.measure.fastest import Execution
from sparsefront.measure.serving import PaddedBatches, Request, joules, poisson, serve
from sparsefront.measure.settings import FEWEST_REQUESTS, Measure

LIMITS = {"largest_batch": 4, "wait_s": 0.001, "give_up_s": 0.1}


def test_arrivals_are_random_and_repeatable():
    requests, again, others = (list(poisson(1000, 10, [5, 7], seed=seed)) for seed in (0, 0, 1))
    assert requests == again != others
    assert abs(len(requests) - 10_000) < 500  # five standard deviations
    assert {request.length for request in requests} == {5, 7}
    assert requests == sorted(requests, key=lambda request: request.arrival_s)


def test_each_request_is_served_once():
    batches = []
    requests = list(poisson(2000, 0.2, [None], seed=0))
    served = serve(batches.append, requests, rate=2000, **LIMITS | {"give_up_s": 1000})
    assert [request for batch in batches for request in batch] == requests
    assert max(map(len, batches)) <= 4 and served.not_reached is None
    assert 0 < served.p50_ms <= served.p95_ms <= served.p99_ms
    assert served.requests == len(requests) and 1 <= served.mean_batch <= 4


def test_rate_out_of_reach():
    batches = []

    def slow(batch: list[Request]) -> None:
        batches.append(batch)
        time.sleep(0.05)

    served = serve(slow, poisson(1e9, 1e9, [None], seed=0), rate=1e9, **LIMITS)  # such a list would fill the memory
    waited = re.fullmatch(r"the queue grew: a request waited (\d+) ms, \d+ were left", served.not_reached)
    assert int(waited[1]) >= 100 and served.p99_ms is None and served.served_per_s is None
    assert sum(map(len, batches)) < served.requests, "the rest is not served"


def test_few_requests_have_no_p99():
    served = serve(lambda batch: None, poisson(100, 0.1, [None], seed=0), rate=100, **LIMITS | {"give_up_s": 1000})
    assert served.p99_ms is None and f" of {FEWEST_REQUESTS} that a p99 needs" in served.not_reached


def test_failure_of_the_network():
    def fail(batch: list[Request]) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        serve(fail, poisson(1000, 0.1, [None], seed=0), rate=1000, **LIMITS)


class Recorder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[list[int], list[int]]] = []

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        self.calls.append(([*input_ids.shape], attention_mask.sum(1).tolist()))
        return input_ids.float()


def test_batches_are_padded_to_prepared_sizes():
    net, inputs = Recorder(), {name: torch.ones(6, 40, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    run = PaddedBatches(net, Execution(FastestMode("eager", net, lambda: None)), inputs, [3, 70], Measure(batch_size=6))
    assert run.rows == [1, 2, 4, 6] and run.lengths == [64, 128]
    net.calls.clear()
    run([Request(0.0, 3), Request(0.0, 70), Request(0.0, 9)])
    run([Request(0.0, 64)])
    assert net.calls == [([4, 128], [3, 70, 9, 1]), ([1, 64], [64])]


def test_energy_of_a_cpu():
    report = joules(lambda: None, torch.device("cpu"))
    assert report == {"joules_per_call": None, "idle_watts": None, "no_energy": "a CPU"}


@pytest.fixture
def nvml(monkeypatch):
    """A library without a GPU: its counter advances by 2 J a reading, and one process has the GPU open."""

    def count_processes(handle, count, buffer) -> int:
        count._obj.value = library.processes
        return TOO_SMALL

    def read_counter(handle, count) -> int:
        library.millijoules += 2000
        count._obj.value = library.millijoules
        return library.status

    library = MagicMock(processes=1, millijoules=0, status=0)
    library.nvmlInit_v2.return_value = library.nvmlDeviceGetHandleByUUID.return_value = 0
    library.nvmlDeviceGetComputeRunningProcesses_v3 = count_processes
    library.nvmlDeviceGetTotalEnergyConsumption = read_counter
    library.nvmlErrorString.return_value = b"Not Supported"
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("Properties", (), {"uuid": "a"}))
    return library


def test_refusal_of_nvml_is_the_reason(nvml):
    nvml.status = 3
    assert joules(lambda: None, torch.device("cuda"))["no_energy"] == "NVML: Not Supported"


@pytest.mark.parametrize(
    ("device", "changes", "resumed", "fields"),
    [
        ("cuda", {}, False, {"joules": 2.0, "no_joules": None}),
        ("cuda", {}, True, {"joules": None, "no_joules": "resumed after a kill"}),
        ("cuda", {"status": 3}, False, {"joules": None, "no_joules": "NVML: Not Supported"}),
        (
            "cuda",
            {"processes": 2},
            False,
            {"joules": None, "no_joules": "another process used the GPU at the same time"},
        ),
        ("cpu", {}, False, {"joules": None, "no_joules": "a CPU"}),
    ],
)
def test_energy_of_a_training(nvml, device, changes, resumed, fields):
    with EnergyMeter(torch.device(device)) as energy:
        vars(nvml).update(changes)
    assert energy.fields(resumed=resumed) == fields


def test_serving_run_has_its_file(run, tmp_path, capsys):
    from hydra.core.hydra_config import HydraConfig

    settings = ["measure.mode=serve", "measure.rates=[400]", "measure.serve_seconds=1", "measure.batch_size=4"]
    result = run("debug=tiny", "granularity=16", "report.html=true", *settings)
    assert result.cost.recover_joules is None and result.cost.no_joules == "train_dense: a CPU"
    served = json.loads((Path(HydraConfig.get().runtime.output_dir) / "serving.json").read_text())
    assert re.search(r"^served, pruned: .* requests/s within p99 20 ms; p50 ", capsys.readouterr().out, re.MULTILINE)
    assert served["device"] == "cpu" and served["gpu"] is None and "nothing about a GPU" in served["note"]
    assert [one["rate"] for side in ("dense", "sparse") for one in served[side]["rates"]] == [400, 400]
    assert served["sparse"]["no_energy"] == "a CPU" and served["largest_batch"] == 4
    page = (Path(HydraConfig.get().runtime.output_dir) / "report.html").read_text()
    assert "As it is served" in page and "not known (train_dense: a CPU)" in page


@pytest.mark.gpu
def test_energy_is_measured_or_explained():
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    report = joules(lambda: x @ x, x.device)
    assert report["no_energy"] or 0 < report["joules_per_call"] < 100 and report["idle_watts"] > 0
