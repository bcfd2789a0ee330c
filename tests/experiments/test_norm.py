"""The timing of norms in experiments/norm on a CPU, with a clock and a Triton kernel that the test gives."""

from pathlib import Path

import pytest
import torch
from sparsefront_kernels.bench.timing import Latency
from sparsefront_kernels.norm import add_layer_norm_columns_reference, layer_norm, layer_norm_columns_reference
from sparsefront_kernels.norm.layer_norm import CUDA_DIVISIONS, TRITON

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "norm"

L2_BYTES = 4096


@pytest.fixture
def script(modules, monkeypatch):
    """The module, of which calls are run and not timed; `counts` of them, and `error` to be added to results."""
    found = modules["measure"]
    found.counts, found.error = [], 0.0

    def run(launch, x, y, weight, bias, eps, *, x_bias=None, residual=None, sums=None):
        total = x
        if residual is not None:
            total = add_layer_norm_columns_reference(x, x_bias, residual, weight, bias, eps)[1]
        if sums is not None:
            sums.copy_(total)
        y.copy_(layer_norm_columns_reference(total, weight, bias, eps) + found.error)

    def time_calls(calls, *, samples):
        for call in calls:
            call()
        found.counts.append(len(calls))
        return Latency(2.0, 1.5, 2.5, samples)

    monkeypatch.setattr(layer_norm, "run", run)
    monkeypatch.setattr(found, "time_calls", time_calls)
    return found


def lines_of(script, kind):
    problem = list(script.problems("64x16", "fp16"))[list(script.KINDS).index(kind)]
    return list(script.measure(problem, torch.device("cpu"), L2_BYTES, 7))


@pytest.mark.parametrize(("kind", "matrices"), [("plain", 2), ("residual", 3), ("residual+sums", 4)])
def test_line_per_launch_with_rotating_operands(kind, matrices, script):
    triton, *others = lines_of(script, kind)
    assert triton["launch"] == str(TRITON) and (triton["median_us"], triton["samples"], triton["reason"]) == (
        2.0,
        7,
        "",
    )
    assert triton["gb_per_s"] == round(matrices * 64 * 16 * 2 / 2.0 / 1e3)
    assert script.counts == [-(-2 * L2_BYTES // (matrices * 64 * 16 * 2))]
    assert triton["device"] == "cpu" and triton["torch"] == torch.__version__ and triton["date"]
    assert [line["launch"] for line in others] == list(map(str, CUDA_DIVISIONS))
    assert all(line["median_us"] == "" and "needs a CUDA device" in line["reason"] for line in others)


@pytest.mark.parametrize("kind", ["plain", "residual+sums"])
def test_what_is_wrong_is_not_timed(kind, script):
    script.error = 0.1
    assert lines_of(script, kind)[0]["reason"] == "differs from the float64 norm" and script.counts == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_cpu_is_refused(script, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["measure.py", "--out", str(tmp_path / "norms.csv")])
    with pytest.raises(RuntimeError, match="torch sees none"):
        script.main()
