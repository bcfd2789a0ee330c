"""A sparse network saved here and loaded in a new process gives the same outputs, and times nothing there."""

import os
import subprocess
import sys

import pytest
import torch
from quick_settings import one_kernel
from safetensors.torch import save_file

from sparsefront.data.base import DataInfo
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import save_choices, swap_layers
from sparsefront.measure.problems import observe_problems
from sparsefront.models.bert import Bert
from sparsefront.patterns.tile_wise import TileWise

SCRIPT = """
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from sparsefront.data.base import DataInfo
from sparsefront.inference import autotune
from sparsefront.inference.fusion import block_times, product_choice
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.swap import load_sparse
from sparsefront.models.bert import Bert

for module in (autotune, block_times, product_choice):
    module.time_layer = None  # anything that is timed fails
folder, device = Path(sys.argv[1]), torch.device(sys.argv[2])
dtype = torch.float16 if device.type == "cuda" else torch.float32
kept = {name: tensor.to(device) for name, tensor in load_file(folder / "kept.safetensors").items()}
expected = kept.pop("logits")
net = Bert(size="tiny").build(DataInfo("sequence_classification", 2, sequence_length=64))
report = load_sparse(net, folder, kept, device=device, dtype=dtype)
assert sum(isinstance(part, FusedBlock) for part in net.modules()) == 2, report.to_json()
with torch.inference_mode():
    assert torch.equal(net(**kept).logits, expected)
print("equal")
"""


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_new_process_gives_equal_outputs(exported, programs, kind):
    device = torch.device(kind)
    model = Bert(size="tiny")
    net = model.build(DataInfo("sequence_classification", 2, sequence_length=64)).eval()
    export = exported(net, TileWise(64), 0.75, model.prunable(net))
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    net.to(device, dtype)
    inputs = {
        "input_ids": torch.randint(0, 8000, (4, 64), device=device),
        "attention_mask": (torch.arange(64) < torch.tensor([[64], [40], [9], [1]])).long().to(device),
    }
    problems = observe_problems(net, inputs, export.manifest.layers)
    choice = KernelChoice("sparse", name=one_kernel() if device.type == "cuda" else None)
    report = swap_layers(net, export, problems, choice, device=device, dtype=dtype, inputs=inputs)
    save_choices(report, export.directory)
    with torch.inference_mode():
        logits = net(**inputs).logits
    kept = {name: tensor.cpu().contiguous() for name, tensor in {**inputs, "logits": logits}.items()}
    save_file(kept, export.directory / "kept.safetensors")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = ["-c", SCRIPT, str(export.directory), device.type]
    if kind == "cpu":
        done = programs.run(command, env=environment)
    else:  # a process cannot use a GPU that its parent has looked for
        command = [sys.executable, *command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.strip().endswith("equal"), done.stderr[-2000:]
