"""The timer keeps every sample, takes turns, and never lets a CPU clock stand in for a GPU."""

import pytest
import torch

from sparsefront.measure.timers import summarise, time_interleaved

CPU = torch.device("cpu")


def test_every_sample_is_kept_and_warm_up_is_not():
    calls = {"a": 0, "b": 0}

    def count(name):
        calls[name] += 1

    taken = time_interleaved({"a": lambda: count("a"), "b": lambda: count("b")}, device=CPU, warmup=3, samples=7)
    assert {name: len(samples) for name, samples in taken.items()} == {"a": 7, "b": 7}
    assert calls == {"a": 10, "b": 10}
    assert all(sample > 0 for samples in taken.values() for sample in samples)


def test_functions_take_turns_and_none_follows_itself():
    order = []
    time_interleaved({name: lambda name=name: order.append(name) for name in "abc"}, device=CPU, warmup=0, samples=3)
    assert "".join(order) == "abcbacabc"


def test_durations_are_milliseconds(clock):
    taken = time_interleaved({"nap": lambda: clock.sleep(0.02)}, device=CPU, warmup=0, samples=3)
    assert taken["nap"] == pytest.approx([20.0] * 3)


def test_slow_timing_on_the_cpu_is_told(clock, caplog):
    with caplog.at_level("INFO"):
        time_interleaved({"nap": lambda: clock.sleep(6.0)}, device=CPU, warmup=1, samples=4)
    assert caplog.messages == [f"timing on the CPU: {turn} of 5 rounds" for turn in (2, 4)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_cuda_timer_raises_without_a_gpu():
    with pytest.raises(RuntimeError, match="needs a GPU"):
        time_interleaved({"a": lambda: None}, device=torch.device("cuda"), warmup=0, samples=1)


def test_no_timer_for_other_devices():
    with pytest.raises(ValueError, match="meta"):
        time_interleaved({"a": lambda: None}, device=torch.device("meta"), warmup=0, samples=1)


def test_summary_of_known_samples():
    summary = summarise([float(value) for value in range(11)])
    assert (summary.median_ms, summary.p20_ms, summary.p80_ms, summary.n) == (5.0, 2.0, 8.0, 11)
    assert summarise([3.0]).p80_ms == 3.0


@pytest.mark.gpu
def test_the_cuda_timer_waits_for_the_device():
    device = torch.device("cuda")
    x = torch.randn(8192, 8192, device=device)
    taken = time_interleaved({"product": lambda: x @ x, "nothing": lambda: None}, device=device, warmup=2, samples=5)
    assert len(taken["product"]) == 5
    assert min(taken["product"]) > 10 * min(taken["nothing"])  # 1.1 TFLOP of fp32
