"""`recovery.backend`: what multiplies while a pruned network is trained.

The sparse one is `sparse_backend.py`, imported only where it is asked for: results of dense trainings do not depend on kernels.
"""

from importlib import import_module
from types import ModuleType
from typing import Annotated, Literal

from pydantic import Field

from sparsefront.errors import InvalidSetting
from sparsefront.options import options_where
from sparsefront.recovery.base import RecoverySetup

Backend = Literal["dense", "sparse", "auto"]
"""What multiplies in training: dense products under masks, kernels that skip what is pruned, or the faster of both."""
DenseBackend = Annotated[
    Literal["dense"],
    Field(description="its update needs gradients of pruned weights, which the sparse backend does not compute"),
]
"""The backend of a recovery that trains pruned weights as well."""

KEY = "recovery.backend"
SPARSE_BACKEND = "sparsefront.recovery.sparse_backend"


def check_backend(backend: Backend, setup: RecoverySetup, *, quantize: bool) -> None:
    """Require, of backend sparse, what its kernels can train.

    Raises:
        InvalidSetting: key `recovery.backend`, with the reason.
    """
    if backend == "sparse" and (reason := backend_unsupported_reason(setup, quantize=quantize)) is not None:
        raise InvalidSetting(KEY, backend, f"{reason}; use dense")


def backend_unsupported_reason(setup: RecoverySetup, *, quantize: bool) -> str | None:
    """Why the kernels of backend sparse cannot train what is set up, or None."""
    pattern, schedule, importance = setup.pruning.pattern, setup.pruning.schedule, setup.pruning.importance
    if not any(part.trains_sparse for part in (pattern.parts if pattern.mixed else (pattern,))):
        trained = ", ".join(options_where("sparsefront.patterns", lambda other: other.trains_sparse))
        return f"has kernels with a backward pass for pattern={trained}, not for {pattern.name}"
    if schedule.in_training and setup.trainer.world_size > 1:
        return f"lets masks change on one device, as those of schedule={schedule.name} do, not on several"
    if schedule.in_training and setup.recipe.ema is not None:
        return f"averages no weights (recipe.ema) whose masks change, as those of schedule={schedule.name} do"
    if importance.source == "training":
        return f"has no gradients of pruned weights, which importance={importance.name} adds up"
    if quantize:
        return "multiplies in 16 or 32 bits, not as recovery.quantize=true rounds"
    return None


def sparse_backend() -> ModuleType:
    """`SPARSE_BACKEND`, by its name: what imports it otherwise would depend on kernels."""
    return import_module(SPARSE_BACKEND)
