"""sparsefront: prune a network, recover its accuracy, swap in sparse kernels, measure both. `import sparsefront as sf`.

    masks = sf.prune(net, pattern="tile_wise", sparsity=0.75, granularity=64)
    report = sf.swap(net, masks, example_inputs=(x,))
    comparison = sf.benchmark(dense_net, net, (x,))

The names below are imported when they are first used, so that `import sparsefront` loads no torch.
"""

from typing import TYPE_CHECKING

from sparsefront.public_names import __dir__, __getattr__  # noqa: F401

if TYPE_CHECKING:
    from sparsefront_kernels.build import build_kernels

    from sparsefront import allocation, importance, patterns, recovery, schedule
    from sparsefront.errors import InvalidSetting
    from sparsefront.export.save import from_pretrained, load, save
    from sparsefront.inference.benchmark import Comparison, benchmark
    from sparsefront.inference.choice import KernelChoice
    from sparsefront.inference.deploy import to_onnx, to_pt2
    from sparsefront.inference.swap import swap
    from sparsefront.latency_search.search import Search
    from sparsefront.measure.settings import Measure
    from sparsefront.pruning.masks import Masks, hold
    from sparsefront.pruning.narrow import narrow
    from sparsefront.pruning.prune import prune
    from sparsefront.pruning.training_masks import HoldMasks
    from sparsefront.recovery.recover import recover
    from sparsefront.runs import FinishedRun, load_run, run
    from sparsefront.training.recipe import Recipe
    from sparsefront.training.trainer import TrainerSettings

__all__ = [
    "Comparison",
    "FinishedRun",
    "HoldMasks",
    "InvalidSetting",
    "KernelChoice",
    "Masks",
    "Measure",
    "Recipe",
    "Search",
    "TrainerSettings",
    "allocation",
    "benchmark",
    "build_kernels",
    "from_pretrained",
    "hold",
    "importance",
    "load",
    "load_run",
    "narrow",
    "patterns",
    "prune",
    "recover",
    "recovery",
    "run",
    "save",
    "schedule",
    "swap",
    "to_onnx",
    "to_pt2",
]
