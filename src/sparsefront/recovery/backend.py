"""`recovery.backend`: which kernels train a pruned network.

The sparse backend is in `sparse_backend.py`, imported only on use, so that results of dense training do not depend on kernels.
"""

from importlib import import_module
from types import ModuleType
from typing import Annotated, Literal

from pydantic import Field

from sparsefront.errors import InvalidSetting
from sparsefront.options import options_where
from sparsefront.recovery.base import RecoverySetup

Backend = Literal["dense", "sparse", "auto"]
"""Training with dense products under masks, with kernels that skip pruned weights, or with the faster of both."""
DenseBackend = Annotated[
    Literal["dense"],
    Field(description="its update needs gradients of pruned weights, which the sparse backend does not compute"),
]
"""The backend of recoveries that also train pruned weights."""

KEY = "recovery.backend"
SPARSE_BACKEND = "sparsefront.recovery.sparse_backend"


def check_backend(backend: Backend, setup: RecoverySetup, *, quantize: bool) -> None:
    """Check that the sparse backend, if selected, can train this setup.

    Raises:
        InvalidSetting: key `recovery.backend`, with the reason.
    """
    if backend == "sparse" and (reason := backend_unsupported_reason(setup, quantize=quantize)) is not None:
        raise InvalidSetting(KEY, backend, f"{reason}; use dense")


def backend_unsupported_reason(setup: RecoverySetup, *, quantize: bool) -> str | None:
    """Why the sparse backend cannot train this setup; None if it can."""
    pattern, schedule, importance = setup.pruning.pattern, setup.pruning.schedule, setup.pruning.importance
    if not any(part.trains_sparse for part in (pattern.parts if pattern.mixed else (pattern,))):
        trained = ", ".join(options_where("sparsefront.patterns", lambda other: other.trains_sparse))
        return f"has kernels with a backward pass for pattern={trained}, not for {pattern.name}"
    if schedule.in_training and setup.trainer.world_size > 1:
        return f"lets masks change on one device, as those of schedule={schedule.name} do, not on several"
    if schedule.in_training and setup.recipe.ema is not None:
        return f"averages no weights (recipe.ema) whose masks change, as those of schedule={schedule.name} do"
    if importance.accumulates:
        return f"has no gradients of pruned weights, which importance={importance.name} adds up"
    if quantize:
        return "multiplies in 16 or 32 bits, not as recovery.quantize=true rounds"
    return None


def sparse_backend() -> ModuleType:
    """Import the sparse backend by name: a static import would make results depend on kernels."""
    return import_module(SPARSE_BACKEND)
