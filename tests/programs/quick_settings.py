"""What makes runs short whose pages, kernels' graphs and latencies no test looks at."""

import pytest

# Drawing pages and tracing the network take most of a tiny run's seconds.
QUICK = ("report.html=false", "report.plot=false", "kernel.fuse=false", "measure.variants=[]")


def time_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which way of running a network is the fastest is still asked, but of few calls."""
    from sparsefront.measure import execution_mode, fastest

    for module, stage in ((execution_mode, "TRIAL"), (fastest, "FINAL")):
        monkeypatch.setattr(module, f"{stage}_WARMUP", 1)
        monkeypatch.setattr(module, f"{stage}_SAMPLES", 3)
