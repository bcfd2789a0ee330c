"""On a GPU: networks with each kernel of their norms compute the masked network, and a swap times these kernels once."""

import copy

import pytest
import torch
from quick_settings import one_kernel
from sparsefront_kernels.norm import layer_norm
from sparsefront_kernels.norm.layer_norm import CUDA_DIVISIONS, TRITON

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.block_pass import fuse_blocks, fuse_dense
from sparsefront.inference.fusion.plan import FusionParts
from sparsefront.measure.correctness import output_error
from sparsefront.measure.graph_capture import record
from sparsefront.patterns.tile_wise import TileWise

pytestmark = pytest.mark.gpu
LAUNCHES = [TRITON, *CUDA_DIVISIONS]
CUDA = torch.device("cuda")
# Two logits may be rounded well by luck: what they may differ by all the same.
TWO_STEPS = 2 * torch.finfo(torch.float16).eps


@pytest.fixture(params=["bert", "vit"])
def pruned(request):
    """A pruned network in float16 on the GPU; of its inputs the first has rows in eights, the others have not."""
    torch.manual_seed(0)
    made = request.getfixturevalue(request.param)(TileWise(32))
    made.net.to(CUDA, torch.float16)
    first = made.inputs[0]
    eight = {name: value.repeat(8, *[1] * (value.dim() - 1)) for name, value in first.items()}
    made.inputs = [{name: on_gpu(value) for name, value in one.items()} for one in (eight, *made.inputs)]
    return made


def on_gpu(value):
    return value.to(CUDA, torch.float16 if value.is_floating_point() else value.dtype)


@pytest.fixture
def forced(monkeypatch):
    """forced(launch): norms run through it wherever it takes them; the list that it returns holds the launches that ran."""
    run, reason = layer_norm.run, layer_norm.unsupported_reason

    def force(launch):
        if launch != TRITON and torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("needs a GPU of compute capability 9.0")
        ran = []
        monkeypatch.setattr(
            layer_norm, "launch_in_use", lambda x, **parts: TRITON if reason(launch, x, **parts) else launch
        )
        monkeypatch.setattr(
            layer_norm, "run", lambda used, *args, **parts: ran.append(used) or run(used, *args, **parts)
        )
        return ran

    return force


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
def test_network_with_each_kernel(launch, pruned, dense, forced):
    """Dense products leave residuals to the norms. Graph replays equal eager code."""
    net, ran = copy.deepcopy(pruned.net), forced(launch)
    first = pruned.inputs[0]
    if dense:
        report = fuse_dense(net, first, layout="feature_major")
        assert all(block.residual_norms for block in report.blocks.values())
    else:
        parts, choice = FusionParts(layouts=("feature_major",)), KernelChoice("sparse", name=one_kernel())
        report = fuse_blocks(net, pruned.formats, pruned.masks, first, choice, parts=parts)
    assert report.rewritten and {norm.kernel for norm in report.norms.values()} == {launch.kernel}
    truth = copy.deepcopy(pruned.net).float()
    with torch.inference_mode():
        ran.clear()
        eager = net(**first)
        assert set(ran) == {launch}
        graph, (replayed,) = record([lambda: net(**first)], device=CUDA, warmup=2)
        graph.replay()
        torch.cuda.synchronize()
        # transformers leaves out a mask that masks nothing, but not while a graph is recorded: other attention kernels
        assert output_error(replayed, eager) <= (5e-3 if "attention_mask" in first else 0)
        for one in pruned.inputs:
            wide = {name: value.float() if value.is_floating_point() else value for name, value in one.items()}
            expected = truth(**wide)
            rounded = output_error(pruned.net(**one), expected)
            assert output_error(net(**one), expected) <= max(TWO_STEPS, 1.5 * rounded)


@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_network_with_norms_of_rows(pruned, dense):
    """Eagerly, in a graph and compiled."""
    net, first = copy.deepcopy(pruned.net), pruned.inputs[0]
    if dense:
        report = fuse_dense(net, first, layout="row_major")
        assert all(block.residual_norms for block in report.blocks.values())
    else:
        parts, choice = FusionParts(layouts=("row_major",)), KernelChoice("sparse", name=one_kernel())
        report = fuse_blocks(net, pruned.formats, pruned.masks, first, choice, parts=parts)
    assert {launch for block in report.rewritten.values() for launch in block.norm_launches} == {"cuda_rows"}
    truth = copy.deepcopy(pruned.net).float()
    with torch.inference_mode():
        eager = net(**first)
        graph, (replayed,) = record([lambda: net(**first)], device=CUDA, warmup=2)
        graph.replay()
        torch.cuda.synchronize()
        assert output_error(replayed, eager) <= (5e-3 if "attention_mask" in first else 0)
        expected = truth(
            **{name: value.float() if value.is_floating_point() else value for name, value in first.items()}
        )
        rounded = output_error(pruned.net(**first), expected)
        for found in (eager, torch.compile(net)(**first)):
            assert output_error(found, expected) <= max(TWO_STEPS, 1.5 * rounded)
