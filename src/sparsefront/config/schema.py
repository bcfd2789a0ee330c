"""The typed root of the configuration, the resolvers used in YAML, and names of run folders.

Importing this module registers them with Hydra and OmegaConf. It imports neither torch nor Lightning, so that `--help` and
`--cfg job` are fast.
"""

import re
from dataclasses import dataclass, field, fields
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, Container, DictConfig, OmegaConf

from sparsefront.options import program_command

CONTROLS = ("dense_continued", "dense_distilled")
STAGES = ("dense", "prune", "recover", "export", "swap", "measure", "report")


@dataclass
class Config:
    """Typed root keys: `arguments` rejects wrong types and unknown keys; groups are checked by `validate`."""

    sparsity: float = 0.75
    granularity: int | str | None = None
    seed: int = 0
    control: str | None = None
    stages: list[str] = field(default_factory=lambda: list(STAGES))
    reuse: bool = True
    optimize: list[str] = field(default_factory=lambda: ["val_sparse"])
    cache_dir: str = ".cache/sparsefront"
    results_dir: str = "results"

    model: Any = MISSING
    dataset: Any = MISSING
    structured: Any = MISSING
    pattern: Any = MISSING
    importance: Any = MISSING
    allocation: Any = MISSING
    schedule: Any = MISSING
    recovery: Any = MISSING
    recipe: Any = MISSING
    kernel: Any = MISSING
    precision: Any = MISSING
    inference: Any = MISSING
    measure: Any = MISSING
    report: Any = MISSING
    trainer: Any = MISSING
    logger: Any = MISSING


GROUPS = tuple(key.name for key in fields(Config) if key.default == MISSING)
"""Each is a folder of conf/ from which conf/config.yaml selects one option."""


def run_label(*, _root_: Container) -> str:
    """`${run_label:}`: `tile_wise_0.75`, `depth_0.5_tile_wise_0.75`, or only the pattern if nothing is pruned.

    Args:
        _root_: the configuration, passed by OmegaConf.
    """
    parts = []
    for group, key, nothing in (("structured", "structured.sparsity", "none"), ("pattern", "sparsity", "dense")):
        chosen = OmegaConf.select(_root_, f"hydra.runtime.choices.{group}")
        # The run reports unresolvable values in one line; raising here would print Hydra's stack trace.
        amount = OmegaConf.select(_root_, key, throw_on_resolution_failure=False)
        if chosen != nothing or group == "pattern":
            parts += [chosen, None if chosen == nothing or amount is None else f"{amount:g}"]
    return "_".join(re.sub(r"[^\w.-]+", "-", str(part)) for part in parts if part is not None)


def point_name(number: int | str, *, _root_: Container) -> str:
    """`${point_name:${hydra.job.num}}`: `003_tile_wise_0.75` for point 3, so that points sort by number.

    Args:
        number: of the point, from 0.
    """
    return f"{int(number) + 1:03d}_{run_label(_root_=_root_)}"


def _first_set(value: Any, fallback: Any) -> Any:
    """`${default:${granularity},128}`: the root's value if set, else the pattern's default."""
    return fallback if value is None else value


def ray_num_gpus(address: str) -> int:
    """`${ray_num_gpus:${hydra.launcher.ray.init.address}}`: GPUs per point; 0 without GPUs, for which Ray would wait forever.

    Args:
        address: local if Ray starts on this machine; otherwise a cluster, which has GPUs.
    """
    if address != "local":
        return 1
    import torch  # late: --help and other launchers need no torch

    return 1 if torch.cuda.is_available() else 0


def _schema() -> DictConfig:
    """The typed root. Unknown keys of groups pass Hydra, which would suggest to append them; `validate` lists the known ones,
    or options that accept the key.
    """
    schema = OmegaConf.structured(Config)
    for group in GROUPS:
        schema[group] = DictConfig({}, flags={"struct": False})
    return schema


def register() -> None:
    """Register the root schema and the resolvers; idempotent."""
    OmegaConf.register_new_resolver("default", _first_set, replace=True)
    OmegaConf.register_new_resolver("run_label", run_label, replace=True)
    OmegaConf.register_new_resolver("point_name", point_name, replace=True)
    OmegaConf.register_new_resolver("ray_num_gpus", ray_num_gpus, replace=True)
    OmegaConf.register_new_resolver("program_command", program_command, replace=True)  # used in the help
    ConfigStore.instance().store(name="schema", node=_schema())


register()
