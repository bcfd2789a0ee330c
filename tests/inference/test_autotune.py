"""The decision after autotuning: the fastest of what is right, dense included where it may."""

from torch import nn

from sparsefront.inference.autotune import Autotuned


def tuned(**latencies_us):
    modules = {name: nn.Identity() for name in latencies_us if name != "dense_linear"}
    return Autotuned("dense_linear", modules=modules, latencies_us=latencies_us)


def test_the_fastest_runs():
    assert tuned(dense_linear=10.0, a=9.0, b=8.0).fastest(dense_allowed=True) == "b"


def test_dense_runs_where_it_is_faster_and_allowed():
    slower = tuned(dense_linear=7.0, a=9.0, b=8.0)
    assert slower.fastest(dense_allowed=True) is None
    assert slower.fastest(dense_allowed=False) == "b"
    assert slower.why_dense() == "dense_linear is faster: 7.0 us against 8.0 us of b"


def test_without_times_the_first_that_is_right_runs():
    found = Autotuned("dense_linear", modules={"a": nn.Identity(), "b": nn.Identity()})
    assert found.fastest(dense_allowed=True) == "a"


def test_without_kernels_dense_runs_and_the_reasons_are_told():
    found = Autotuned("dense_linear", unsupported={"a": "needs a CUDA device"}, latencies_us={"dense_linear": 7.0})
    assert found.fastest(dense_allowed=False) is None
    assert found.why_dense() == "no kernel can run it: a: needs a CUDA device"
