"""sf.swap on a bare GPU machine, each call in a process of its own: what is built, what is kept, and what stops nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
PROGRAM = """
import json, logging, sys, torch
import sparsefront as sf
from sparsefront_kernels import cuda_library
if "without-compiler" in sys.argv:
    cuda_library.compiler = lambda: None
lines = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger().addHandler(handler)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(3))
        self.head = torch.nn.Linear(768, 768)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

torch.manual_seed(0)
net, x = Net().half().cuda().eval(), torch.randn(32, 128, 768).half().cuda()
masks = sf.prune(net, "tile_wise", 0.75, granularity=128, layers=["*.linear?", "head"], tell=len)
report = sf.swap(net, masks, (x,), kernel="sparse", seconds=float(sys.argv[1]), tell=lines.append)
assert net(x).isfinite().all()
kernels = [layer.kernel for layer in report.layers.values()]
tried = sorted({kernel for layer in report.layers.values() for kernel in (layer.kernel, *layer.candidates)})
print(json.dumps({"lines": lines, "kernels": kernels, "tried": tried, "seconds": dict(report.seconds)}))
"""


@pytest.fixture
def start(tmp_path):
    """start(*arguments) -> a process that swaps; finish(process) -> what it reports."""

    def begin(*arguments: object, cache: Path = tmp_path / "cache") -> subprocess.Popen:
        environment = os.environ | {"SPARSEFRONT_KERNELS_CACHE": str(cache)}
        command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return begin


def finish(process: subprocess.Popen) -> dict:
    out, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def built(report: dict) -> bool:
    """Whether kernels of CUDA libraries were timed, or taken untimed."""
    return any("sm90" in kernel for kernel in report["tried"])


def lines_with(report: dict, text: str) -> list[str]:
    return [line for line in report["lines"] if text in line]


def test_a_complete_search_is_kept(start):
    first, second = finish(start(300)), finish(start(300))
    assert len(lines_with(first, "CUDA libraries with nvcc, once on this machine: ")) == 1
    assert built(first)
    assert "builds" in first["seconds"] and "builds" not in second["seconds"]
    assert second["lines"][-1].endswith("as found before") and second["kernels"] == first["kernels"]


def test_a_search_without_time_goes_on(start):
    first, second = finish(start(0)), finish(start(300))
    assert lines_with(first, "left out, seconds=0") and any("sm90" in kernel for kernel in first["kernels"])
    assert lines_with(second, "goes on where a search ran out of time") and not lines_with(second, "as found before")
    third = finish(start(300))
    assert third["lines"][-1].endswith("as found before") and third["kernels"] == second["kernels"]


def test_of_two_processes_one_builds(start):
    reports = [finish(process) for process in [start(60), start(60)]]
    assert any(lines_with(report, "another process builds") for report in reports) and all(map(built, reports))
