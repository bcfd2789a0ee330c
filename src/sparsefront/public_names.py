"""The public names of sparsefront, imported lazily; docs/api.md lists them."""

import importlib
import importlib.metadata
import sys
from types import ModuleType

from sparsefront.options import missing_package

ORIGINS = {
    "prune": "sparsefront.pruning.prune",
    "recover": "sparsefront.recovery.recover",
    "narrow": "sparsefront.pruning.narrow",
    "swap": "sparsefront.inference.swap",
    "benchmark": "sparsefront.inference.benchmark",
    "to_pt2": "sparsefront.inference.deploy",
    "to_onnx": "sparsefront.inference.deploy",
    "build_kernels": "sparsefront_kernels.build",
    "Comparison": "sparsefront.inference.benchmark",
    "save": "sparsefront.export.save",
    "load": "sparsefront.export.save",
    "from_pretrained": "sparsefront.export.save",
    "run": "sparsefront.runs",
    "load_run": "sparsefront.runs",
    "FinishedRun": "sparsefront.runs",
    "Masks": "sparsefront.pruning.masks",
    "hold": "sparsefront.pruning.masks",
    "HoldMasks": "sparsefront.pruning.training_masks",
    "Search": "sparsefront.latency_search.search",
    "KernelChoice": "sparsefront.inference.choice",
    "Measure": "sparsefront.measure.settings",
    "Recipe": "sparsefront.training.recipe",
    "TrainerSettings": "sparsefront.training.trainer",
    "InvalidSetting": "sparsefront.errors",
}
"""Name -> the module that defines it."""
PACKAGES = ("allocation", "importance", "patterns", "recovery", "schedule")
"""Packages with options as attributes: `sf.patterns.TileWise(64)`."""


def __getattr__(name: str) -> object:
    """The `__getattr__` of package sparsefront: imports a public name and caches it there."""
    package = sys.modules["sparsefront"]
    value: ModuleType | object
    if name in ORIGINS:
        try:
            value = getattr(importlib.import_module(ORIGINS[name]), name)
        except ModuleNotFoundError as error:
            complaint = missing_package(error)
            if complaint is None:
                raise
            raise ImportError(f"sf.{name}: {complaint}", name=error.name) from error
    elif name in PACKAGES:
        value = importlib.import_module(f"sparsefront.{name}")
    elif name == "__version__":
        value = importlib.metadata.version("sparsefront")
    else:
        raise AttributeError(f"module 'sparsefront' has no attribute {name!r}; it offers {', '.join(__dir__())}")
    setattr(package, name, value)
    return value


def __dir__() -> list[str]:
    """The `__dir__` of package sparsefront."""
    return sorted([*ORIGINS, *PACKAGES])
