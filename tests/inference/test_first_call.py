"""sf.swap on a bare GPU machine, each call in a process of its own: what is built, what is kept, and what stops nothing."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from sparsefront_kernels import cuda_library

pytestmark = pytest.mark.gpu
UNBUILT = {
    cuda_library.TOOLCHAIN,
    "gathered_sm90_persistent",
}  # the other libraries of this machine need not be built again
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
        self.block = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        self.head = torch.nn.Linear(768, 768)

    def forward(self, x):
        return self.head(self.block(x))

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
    cache = tmp_path / "cache"
    for name in cuda_library.SOURCES.keys() - UNBUILT:
        library = cuda_library.built(name)
        if library is not None and library.parent.parent == cuda_library._cache():
            shutil.copytree(library.parent, cache / library.parent.name)

    def begin(*arguments: object) -> subprocess.Popen:
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
    """Of two processes at once, one builds; a later one builds and times nothing."""
    reports = [finish(process) for process in [start(300), start(300)]]
    assert any(lines_with(report, "another process builds") for report in reports) and all(map(built, reports))
    assert all(len(lines_with(report, "CUDA libraries with nvcc, once on this machine: ")) == 1 for report in reports)
    assert all("builds" in report["seconds"] for report in reports)
    later = finish(start(300))
    assert "builds" not in later["seconds"] and later["lines"][-1].endswith("as found before")
    assert later["kernels"] in [report["kernels"] for report in reports]


def test_a_search_without_time_goes_on(start):
    first, second = finish(start(0)), finish(start(300))
    assert lines_with(first, "left out, seconds=0") and any("sm90" in kernel for kernel in first["kernels"])
    assert lines_with(second, "goes on where a search ran out of time") and not lines_with(second, "as found before")
    third = finish(start(300))
    assert third["lines"][-1].endswith("as found before") and third["kernels"] == second["kernels"]
