"""The typed root of the configuration and the resolvers that the YAML files use.

Importing this module registers both with Hydra and OmegaConf; it imports neither torch nor Lightning, so that `--help` and
`--cfg job` answer at once.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from sparsefront.run_name import point_name, run_label

STAGES = ("dense", "prune", "recover", "export", "swap", "measure", "report")


@dataclass
class Config:
    """Root keys, typed: a wrong type or an unknown key is rejected by Hydra itself; groups are checked by `validate`."""

    sparsity: float = 0.75
    granularity: int | str | None = None
    seed: int = 0
    stages: list[str] = field(default_factory=lambda: list(STAGES))
    reuse: bool = True
    optimize: list[str] = field(default_factory=lambda: ["sparse"])
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
    measure: Any = MISSING
    report: Any = MISSING
    trainer: Any = MISSING
    logger: Any = MISSING


def _first_set(value: Any, fallback: Any) -> Any:
    """`${default:${granularity},128}`: the root's value where the user gave one, else the pattern's own."""
    return fallback if value is None else value


def _schema() -> DictConfig:
    """The typed root. A key of another allocation than the chosen one passes Hydra, which would advise to append it;
    `validate` says which option takes it.
    """
    schema = OmegaConf.structured(Config)
    schema.allocation = DictConfig({}, flags={"struct": False})
    return schema


def register() -> None:
    """Register the root schema and the resolvers; calling it again changes nothing."""
    OmegaConf.register_new_resolver("default", _first_set, replace=True)
    OmegaConf.register_new_resolver("run_label", run_label, replace=True)
    OmegaConf.register_new_resolver("point_name", point_name, replace=True)
    ConfigStore.instance().store(name="schema", node=_schema())


register()
