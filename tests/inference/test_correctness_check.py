"""A kernel that is wrong is rejected before anything is timed, however it cheats."""

import math
from contextlib import nullcontext

import pytest
import torch
from sparsefront_kernels import KernelEntry, entry
from torch import nn

from sparsefront.inference import autotune
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import swap_layers
from sparsefront.measure.correctness import CPU_ROWS, CorrectnessCheck, assume_checked, rows_to_compare
from sparsefront.measure.problems import observe_problems
from sparsefront.patterns.tile_wise import TileWise

CPU = torch.device("cpu")
RIGHT = entry("gathered_reference").run


def returns_zeros(x, stored, bias):
    return torch.zeros(x.shape[0], stored.shape[0])


def stale_from_the_first_call():
    kept = []

    def run(x, stored, bias):
        kept.append(RIGHT(x, stored, bias))
        return kept[0]

    return run


def stale_by_address():
    kept = {}

    def run(x, stored, bias):
        return kept.setdefault(x.data_ptr(), RIGHT(x, stored, bias))

    return run


def one_buffer_for_all_calls():
    buffer = []

    def run(x, stored, bias):
        y = RIGHT(x, stored, bias)
        if not buffer:
            buffer.append(y.clone())
        return buffer[0].copy_(y)

    return run


def forgets_the_bias(x, stored, bias):
    return RIGHT(x, stored, None)


def leaves_a_row_out(x, stored, bias):
    y = RIGHT(x, stored, bias)
    y[-1] = math.nan
    return y


def returns_fewer_rows(x, stored, bias):
    return RIGHT(x, stored, bias)[:-1]


def slightly_off(x, stored, bias):
    return RIGHT(x, stored, bias) * (1 + 1e-4)


def fails(x, stored, bias):
    raise RuntimeError("launch failed\nlong trace")


CHEATS = {
    "zeros": lambda: returns_zeros,
    "stale": stale_from_the_first_call,
    "stale_by_address": stale_by_address,
    "one_buffer": one_buffer_for_all_calls,
    "no_bias": lambda: forgets_the_bias,
    "row_left_out": lambda: leaves_a_row_out,
    "slightly_off": lambda: slightly_off,
}


def swap_with(kernel, monkeypatch, mlp, exported):
    """Swap where `kernel` stands for gathered_reference; anything that is timed is noted."""
    timed = []
    monkeypatch.setattr(autotune, "entries", lambda: (kernel,))
    monkeypatch.setattr(autotune, "time_layer", lambda layer, x: timed.append(layer))
    net = mlp()
    export = exported(net, TileWise(16), 0.5, ["first"])
    problems = observe_problems(net, {"x": torch.randn(100, 64)}, ["first"])
    return swap_layers(mlp(), export, problems, KernelChoice(), device=CPU, dtype=torch.float32), timed


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheating_kernel_is_never_timed(cheat, again, monkeypatch, mlp, exported):
    kernel = KernelEntry(name="fake", family="gathered", product=CHEATS[cheat](), is_reference=True)
    with assume_checked() if again else nullcontext():
        report, timed = swap_with(kernel, monkeypatch, mlp, exported)
        assert (rows_to_compare(torch.empty(CPU_ROWS, 1)) is None) != again
    assert report.layers["first"].kernel == "dense_linear"
    assert report.layers["first"].unsupported["fake"].startswith("relative error")
    assert "fake: relative error" in report.dense_layers["first"]
    assert timed == []


@pytest.mark.parametrize(
    ("run", "words"),
    [(fails, "RuntimeError: launch failed"), (returns_fewer_rows, "RuntimeError: shape '[64, 96]' is invalid")],
)
def test_failing_kernel_is_rejected(run, words, monkeypatch, mlp, exported):
    kernel = KernelEntry(name="fake", family="gathered", product=run, is_reference=True)
    report, timed = swap_with(kernel, monkeypatch, mlp, exported)
    assert report.layers["first"].unsupported["fake"].startswith(words)
    assert "long trace" not in report.layers["first"].unsupported["fake"]
    assert timed == []


def test_a_right_kernel_passes(monkeypatch, mlp, exported):
    kernel = KernelEntry(name="fake", family="gathered", product=RIGHT, is_reference=True)
    report, _ = swap_with(kernel, monkeypatch, mlp, exported)
    assert report.layers["first"].kernel == "fake"
    assert report.layers["first"].relative_error < 4e-6


def test_dense_layer_agrees_in_chunks(monkeypatch):
    monkeypatch.setattr("sparsefront.measure.correctness.CHUNK_ELEMENTS", 64)
    for layer, shape in ((nn.Linear(16, 8), (3, 10, 16)), (nn.Conv2d(4, 8, 3, padding=1), (1, 4, 6, 6))):
        assert CorrectnessCheck(layer, shape).error(layer) < 1e-6


def test_layer_that_lost_everything():
    layer = nn.Linear(16, 8, bias=False).requires_grad_(False)
    layer.weight.zero_()
    check = CorrectnessCheck(layer, (4, 16))
    assert check.evaluate(layer) == (0.0, None)
    assert check.evaluate(nn.Linear(16, 8))[0] == math.inf


@pytest.mark.parametrize("wrong", [0, 39])
def test_some_of_many_images_are_compared(wrong):
    layer = nn.Conv2d(4, 4, 3)
    check = CorrectnessCheck(layer, (40, 4, 6, 6))
    check._inputs = [torch.randn(40, 4, 6, 6) for _ in range(2)]  # as on a GPU, whose batches are not cut

    def spoiled(value):
        def run(x):
            y = layer(x)
            y[wrong if value == 0.0 else 17] = value
            return y

        return run

    assert check.error(layer) < check.limit
    assert check.error(spoiled(0.0)) > check.limit
    assert check.error(spoiled(math.nan)) == math.inf
