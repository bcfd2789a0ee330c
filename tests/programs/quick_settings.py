"""What makes runs short whose pages, kernels' graphs and latencies no test looks at."""

import pytest
import torch

# Drawing pages and tracing the network take most of a tiny run's seconds.
QUICK = ("report.html=false", "report.plot=false", "kernel.fuse=false", "measure.variants=[]")


def time_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which way of running a network is the fastest is still asked, but of few calls."""
    from sparsefront.measure import execution_mode, fastest

    for module, stage in ((execution_mode, "TRIAL"), (fastest, "FINAL")):
        monkeypatch.setattr(module, f"{stage}_WARMUP", 1)
        monkeypatch.setattr(module, f"{stage}_SAMPLES", 3)


def one_kernel() -> str:
    """A kernel of tiles in 16 bits on this GPU, for networks whose search no test looks at: others are not compiled and timed."""
    return "gathered_sm90" if torch.cuda.get_device_capability() == (9, 0) else "gathered_triton"
