"""The typed root of the configuration, the resolvers that the YAML files use, and the names of run folders.

Importing this module registers both with Hydra and OmegaConf; it imports neither torch nor Lightning, so that `--help` and
`--cfg job` answer at once.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, Container, DictConfig, OmegaConf

from sparsefront.options import program_command

# each a folder of conf/ with one option chosen; conf/config.yaml chooses
GROUPS = (
    "model",
    "dataset",
    "pattern",
    "importance",
    "allocation",
    "schedule",
    "recovery",
    "recipe",
    "kernel",
    "precision",
    "measure",
    "report",
    "trainer",
    "logger",
)
CONTROLS = ("dense_continued", "dense_distilled")
STAGES = ("dense", "prune", "recover", "export", "swap", "measure", "report")


@dataclass
class Config:
    """Root keys, typed: `arguments` rejects a wrong type and an unknown key; groups are checked by `validate`."""

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
    pattern: Any = MISSING
    importance: Any = MISSING
    allocation: Any = MISSING
    schedule: Any = MISSING
    recovery: Any = MISSING
    recipe: Any = MISSING
    kernel: Any = MISSING
    precision: Any = MISSING
    measure: Any = MISSING
    report: Any = MISSING
    trainer: Any = MISSING
    logger: Any = MISSING


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


def _first_set(value: Any, fallback: Any) -> Any:
    """`${default:${granularity},128}`: the root's value where the user gave one, else the pattern's own."""
    return fallback if value is None else value


def ray_num_gpus(address: str) -> int:
    """`${ray_num_gpus:${hydra.launcher.ray.init.address}}`: GPUs of a point. Ray waits for ever for one that no machine has.

    Args:
        address: local where Ray starts on this machine; otherwise that of a cluster, whose machines have GPUs.
    """
    if address != "local":
        return 1
    import torch  # here, for --help and other launchers are to answer without it

    return 1 if torch.cuda.is_available() else 0


def _schema() -> DictConfig:
    """The typed root. An unknown key of a group passes Hydra, which would advise to append it; `validate` says which there
    are, or which option takes it.
    """
    schema = OmegaConf.structured(Config)
    for group in GROUPS:
        schema[group] = DictConfig({}, flags={"struct": False})
    return schema


def register() -> None:
    """Register the root schema and the resolvers; calling it again changes nothing."""
    OmegaConf.register_new_resolver("default", _first_set, replace=True)
    OmegaConf.register_new_resolver("run_label", run_label, replace=True)
    OmegaConf.register_new_resolver("point_name", point_name, replace=True)
    OmegaConf.register_new_resolver("ray_num_gpus", ray_num_gpus, replace=True)
    OmegaConf.register_new_resolver("program_command", program_command, replace=True)  # of the help
    ConfigStore.instance().store(name="schema", node=_schema())


register()
