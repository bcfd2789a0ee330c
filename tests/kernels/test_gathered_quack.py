"""QuACK as a kernel and as a peer, on a CPU: what it documents, computed in float64, stands in for its grouped GEMM."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from in_layout import InLayout
from random_problems import OCCASIONS, draw
from sparsefront_kernels import Problem, entry, find
from sparsefront_kernels.bench.correctness import poisoned_memory
from sparsefront_kernels.bench.peers import PEERS
from sparsefront_kernels.gathered import quack as gathered_quack
from sparsefront_kernels.gathered.quack import (
    K_BLOCK,
    pack_for_quack,
    problem_unsupported_reason,
)
from sparsefront_kernels.tuning import launches

NAME = "gathered_quack"
CPU = torch.device("cpu")


@pytest.fixture
def asked(monkeypatch, nothing_tuned):
    """The launches that the stand-in was asked for, with a GPU of 132 SMs pretended."""
    found = []

    def stand_in(a, b, out, *, offsets, kept, order, launch):
        """out[g] = A[:, A_idx[g's]] · B[g's], with every condition that QuACK sets."""
        found.append((launch, order is not None))
        groups, m, n = out.shape
        assert a.dtype == b.dtype == out.dtype and offsets.dtype == kept.dtype == torch.int32
        assert a.shape[0] == m and a.stride(0) == 1 and a.stride(1) % 8 == m % 8 == 0 and a.data_ptr() % 16 == 0
        assert b.shape == (len(kept), n) and b.is_contiguous() and n % 8 == 0 and len(kept) > 0
        assert out.stride(1) == 1 and out.stride(2) % 8 == 0 and offsets.shape == (groups + 1,)
        counts = offsets.diff()
        assert (counts % K_BLOCK == 0).all() and int(offsets[-1]) == len(kept)
        if order is not None:
            assert order.dtype == torch.int32 and sorted(order.tolist()) == list(range(groups))
            assert (counts[order.long()].diff() <= 0).all()
        for group, (start, stop) in enumerate(pairwise(offsets.tolist())):
            gathered = a[:, kept[start:stop].long()].double()
            out[group] = (gathered @ b[start:stop].double()).to(out.dtype)

    monkeypatch.setattr(gathered_quack, "grouped_gemm", stand_in)
    monkeypatch.setattr(
        gathered_quack,
        "problem_unsupported_reason",
        lambda problem: None if problem.dtype.itemsize == 2 else "takes 16 bits",
    )
    monkeypatch.setattr(launches, "num_sms", lambda device: 132)
    return found


def stored_and_problem(cases, weight, m=24, dtype=torch.float16):
    stored = cases[weight].build().to(CPU, dtype)
    return stored, Problem(m, stored.shape[1], stored.shape[0], dtype, CPU, "feature_major")


def test_random_problems(asked):
    for seed in range(2 * len(OCCASIONS)):
        drawn = draw(InLayout(entry(NAME), "feature_major"), seed, "cpu", largest=150)
        assert not isinstance(drawn, str), drawn
        with poisoned_memory():
            y = drawn.run()
        assert drawn.fault(y) is None
    assert len(asked) >= len(OCCASIONS)


def pretend_gpu(monkeypatch, capability=(9, 0)):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def missing(monkeypatch, package):
    real = gathered_quack.importlib.util.find_spec
    monkeypatch.setattr(
        gathered_quack.importlib.util,
        "find_spec",
        lambda name: None if name == package else real(name) or SimpleNamespace(),
    )


def test_reasons_on_a_cpu(cases):
    stored, problem = stored_and_problem(cases, "gathered-uneven")
    assert find(stored, problem).unsupported[NAME] == "needs a CUDA device, not cpu"
    stored, problem = stored_and_problem(cases, "gathered-uneven", dtype=torch.float32)
    assert find(stored, problem).unsupported[NAME] == "takes float16 or bfloat16, not torch.float32"
    stored, problem = stored_and_problem(cases, "gathered-tile4")
    assert find(stored, problem).unsupported[NAME] == "takes tiles whose outputs are a multiple of 8, not 4"
    with pytest.raises(ValueError, match="takes tiles whose outputs are a multiple of 8, not 4"):
        pack_for_quack(stored)


@pytest.mark.parametrize(
    ("package", "reason"),
    [("quack", "quack-kernels is not installed"), ("cutlass", "nvidia-cutlass-dsl is not installed")],
)
def test_reason_where_a_package_is_absent(monkeypatch, package, reason):
    pretend_gpu(monkeypatch)
    missing(monkeypatch, package)
    problem = Problem(8, 8, 8, torch.float16, torch.device("cuda"), "feature_major")
    assert problem_unsupported_reason(problem) == f"{reason}: it comes with sparsefront's extra `quack`"
    assert PEERS["quack_compact"].unsupported_reason("fp16", 0.5) == problem_unsupported_reason(problem), (
        "the peer says the same"
    )
    assert PEERS["quack_compact"].unsupported_reason("fp32", 0.5) == "it gathers 16-bit types alone"


def test_reasons_of_other_gpus(monkeypatch):
    problem = Problem(8, 8, 8, torch.float16, torch.device("cuda"), "feature_major")
    pretend_gpu(monkeypatch, (10, 0))
    assert problem_unsupported_reason(problem) == "was tried on compute capability 9.0 alone, this GPU has 10.0"
    pretend_gpu(monkeypatch)
    missing(monkeypatch, "nothing")

    def broken():
        raise OSError("libcute.so: not found\nin all places")

    gathered_quack._import_error.cache_clear()
    monkeypatch.setattr(gathered_quack, "_modules", broken)
    assert problem_unsupported_reason(problem) == "quack-kernels cannot be imported: libcute.so: not found"
    gathered_quack._import_error.cache_clear()
