"""docs/library.md: every block of Python runs as it stands, in a process and a folder of its own."""

import json
import os
from pathlib import Path

import pytest
from program_server import ProgramServer

import sparsefront

ROOT = Path(sparsefront.__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "library.md").read_text()
SECTIONS = {
    part.partition("\n")[0]: part.split("```python\n")[1].split("```")[0]
    for part in DOCUMENT.split("\n## ")
    if "```python\n" in part
}
SAID = {
    "ResNet-18 of torchvision": ["19 of 21 layers run a sparse kernel", "95 % interval", "conv1"],
    "BERT of transformers": ["12 of 12 layers run a sparse kernel", "95 % interval"],
    "Your own training loop": ["prune: n_m at 0.5 in 1 layer"],
    "In a folder": ["prune: n_m at 0, rising to 0.5 (schedule=gradual), in 1 layer"],
    "The program from Python": ["Quality(metric_name='accuracy'", "Masks(24 layers, pattern=n_m, sparsity=0.5"],
}

# Which way of running a network is the fastest is still asked, and the fastest ones are timed, but by few calls.
FEW_TIMINGS = """
from sparsefront.measure import end_to_end, execution_mode, fastest
execution_mode.TRIAL_WARMUP = fastest.FINAL_WARMUP = 1; execution_mode.TRIAL_SAMPLES = fastest.FINAL_SAMPLES = 3
def few(calls, *, time=end_to_end.time_interleaved, **settings):
    return time(calls, **settings | {"warmup": 1, "samples": 5})
end_to_end.time_interleaved = few
"""


def test_every_block_is_expected():
    assert SECTIONS.keys() == SAID.keys()
    assert DOCUMENT.count("```python\n") == len(SECTIONS)


@pytest.mark.parametrize("section", SAID)
def test_a_block_runs(tmp_path: Path, programs: ProgramServer, section: str):
    done = programs.run(["-c", FEW_TIMINGS + SECTIONS[section]], cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in SAID[section]), done.stdout
    if section.startswith("ResNet"):
        told = [line for line in done.stdout.splitlines() if line.startswith("prune: ")]
        assert len(told) == 2 and all(line in DOCUMENT for line in told)


def test_notebook_runs(tmp_path: Path, programs: ProgramServer):
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = programs.run(["-c", FEW_TIMINGS + code], cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert "2 of 3 layers run a sparse kernel" in done.stdout and (tmp_path / "model.pt2").is_file()


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
