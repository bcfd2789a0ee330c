"""Few rows of X: the plan can be run, and what a file lacks is no column of its tables."""

from pathlib import Path

from sparsefront_kernels.bench import __main__ as command
from sparsefront_kernels.bench.plan import Chosen

from experiments.operators import few_rows

PLAN = Path(few_rows.__file__).with_suffix(".plan")


def test_every_line_of_the_plan_runs():
    masks = ["--distribution", "pattern", "--masks", "sparsefront.pruning.operator_masks:pattern_masks"]
    lines = [command.parser().parse_args([*masks, *line]) for line in command._lines(PLAN)]
    kernels = set()
    for line in lines:
        assert command._masks(line) and {shape.m for shape in command._shapes(line)} <= {1, 4, 16, 32, 64}
        chosen = Chosen(tuple(line.kernels), tuple(line.layout), tuple(line.family))
        kernels |= {kernel.name for dtype in line.dtype for kernel, _ in chosen.entries(dtype)}
    blocked = {"blocked_sm90", "blocked_gathered_sm90"}
    assert kernels == {"gathered_small_m", "gathered_sm90", "n_m_small_m", "n_m_mma"} | blocked
