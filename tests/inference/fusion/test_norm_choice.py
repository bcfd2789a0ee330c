"""The kernel of a feature-major norm by time, with kernels and times that the test gives."""

import copy

import pytest
import torch
from sparsefront_kernels.norm import add_layer_norm_columns_reference, layer_norm, layer_norm_columns_reference
from sparsefront_kernels.norm.layer_norm import CUDA_DIVISIONS, TRITON

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import norms as norm_choice
from sparsefront.inference.fusion import placement as fused_norm
from sparsefront.inference.fusion.block_pass import fuse_blocks
from sparsefront.inference.fusion.norms import NormChooser
from sparsefront.measure.timers import KernelTime
from sparsefront.patterns.tile_wise import TileWise

ONE, TWO, FOUR = CUDA_DIVISIONS


class NormKernels:
    """Stand in for the kernels of a norm and for the GPU's clock."""

    def __init__(self):
        self.latencies_us = {TRITON: 5.0, ONE: 4.0, TWO: 3.0, FOUR: 6.0}
        self.reasons, self.faults = {}, {}  # launch -> why it takes nothing; launch -> what becomes of its result
        self.timed, self.ran = [], []

    def unsupported_reason(self, launch, x, **operands):
        return self.reasons.get(launch)

    def run(self, launch, x, y, weight, bias, eps, *, x_bias=None, residual=None, sums=None):
        self.ran.append(launch)
        if residual is None:
            normed = layer_norm_columns_reference(x, weight, bias, eps)
        else:
            normed, total = add_layer_norm_columns_reference(x, x_bias, residual, weight, bias, eps)
            if sums is not None:
                sums.copy_(total)
        y.copy_(normed)
        self.faults.get(launch, lambda y, sums: None)(y, sums)

    def time(self, candidate, *operands):
        candidate(*operands)
        self.timed.append((candidate.launch, tuple(operands[0].shape), len(operands), candidate.keep_sums))
        return KernelTime(self.latencies_us[candidate.launch])


@pytest.fixture
def norms(monkeypatch, clock, nothing_tuned):
    made = NormKernels()
    monkeypatch.setattr(fused_norm, "_is_plain", lambda x: False)
    monkeypatch.setattr(NormChooser, "times", lambda self: True)
    monkeypatch.setattr(norm_choice, "time_layer", made.time)
    monkeypatch.setattr(layer_norm, "unsupported_reason", made.unsupported_reason)
    monkeypatch.setattr(layer_norm, "run", made.run)
    return made


def fused(pruned, mode="sparse", **options):
    net = copy.deepcopy(pruned.net)
    return net, fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], KernelChoice(mode), **options)


@pytest.mark.parametrize(("mode", "added_by_norms"), [("auto", True), ("sparse", False)])
def test_fastest_right_kernel_runs(mode, added_by_norms, bert, clock, norms):
    """auto takes dense products here, behind which norms add the residual."""
    clock.products_us["dense_linear"] = 5.0
    pruned = bert(TileWise(32))
    net, report = fused(pruned, mode)
    assert all(bool(block.residual_norms) == added_by_norms for block in report.blocks.values())
    assert report.norms and all(("+feature_major" in name) == added_by_norms for name in report.norms)
    for norm in report.norms.values():
        assert (norm.kernel, norm.launch) == ("cuda", {"cluster": 2, "columns": 64, "threads": 512})
        assert norm.latency_us == 3.0 and norm.candidates == {str(one): us for one, us in norms.latencies_us.items()}
    assert all(f"norms{' (2 add the residual)' * added_by_norms} by {TWO}" in line for line in report.summary())
    assert report.to_json()["block_norms"].keys() == report.norms.keys()
    norms.ran.clear()
    with torch.no_grad():
        outputs, expected = net(**pruned.inputs[1]), pruned.net(**pruned.inputs[1])
    assert set(norms.ran) == {TWO}  # at another batch too, as the nearest that was measured
    assert torch.allclose(outputs.logits, expected.logits, atol=1e-4)


def test_each_distinct_problem_is_timed_once(bert, norms, nothing_tuned):
    pruned = bert(TileWise(32))
    _, report = fused(pruned)
    assert len(norms.timed) == len(set(norms.timed)) == 4 * len(report.norms)
    rows = {shape[1] for _, shape, *_ in norms.timed}
    assert rows == {3 * 16}  # of the batch that is measured
    before = len(norms.timed)
    nothing_tuned()
    _, again = fused(pruned)
    assert len(norms.timed) == before
    assert {norm.kernel for norm in again.norms.values()} == {"cuda"}
    assert all(norm.candidates == {} and norm.launch["cluster"] == 2 for norm in again.norms.values())


def breaks_last_column(y, sums):
    y[:, -1] += 0.01


def leaves_out_an_element(y, sums):
    y[-1, -1] = torch.nan


def fails(y, sums):
    raise RuntimeError("CUDA error 1 at launch")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (breaks_last_column, "differs from the float64 norm"),
        (leaves_out_an_element, "differs from the float64 norm"),
        (fails, "CUDA error 1 at launch"),
    ],
)
def test_wrong_kernel_is_left_out(fault, reason, bert, norms, caplog):
    norms.faults[TWO] = fault
    _, report = fused(bert(TileWise(32)))
    for norm in report.norms.values():
        assert norm.launch["cluster"] == 1 and str(TWO) not in norm.candidates
        assert reason in norm.unsupported[str(TWO)]
    assert TWO not in {launch for launch, *_ in norms.timed} and reason in caplog.text
