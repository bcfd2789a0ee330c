"""The names of run folders: pattern and sparsity, in characters that every file system takes."""

import re

from omegaconf import Container, OmegaConf


def run_label(*, _root_: Container) -> str:
    """`${run_label:}`: `tile_wise_0.75`, or the pattern alone where nothing is pruned.

    Args:
        _root_: the configuration, given by OmegaConf.
    """
    pattern = OmegaConf.select(_root_, "hydra.runtime.choices.pattern")
    # One that cannot be resolved is reported by the run, in one line; here Hydra would end it with a stack trace.
    found = OmegaConf.select(_root_, "sparsity", throw_on_resolution_failure=False)
    sparsity = None if pattern == "dense" else found
    parts = (pattern, None if sparsity is None else f"{sparsity:g}")
    return "_".join(re.sub(r"[^\w.-]+", "-", str(part)) for part in parts if part is not None)


def point_name(number: int | str, *, _root_: Container) -> str:
    """`${point_name:${hydra.job.num}}`: `003_tile_wise_0.75` of point 3, so that points sort in the order in which they ran.

    Args:
        number: of the point, from 0, as Hydra counts.
    """
    return f"{int(number) + 1:03d}_{run_label(_root_=_root_)}"
