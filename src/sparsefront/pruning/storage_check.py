"""What a pattern, which may be a user's own, names for the storage of its layers, checked before anything is trained.

It reads the storage formats of the kernel package and changes no mask: keys of stages leave this file out (`BOOKKEEPING` of
`artifacts.code_digest`), so that an edited format repeats no pruning and no training.
"""

import inspect
from collections.abc import Iterable, Mapping

from sparsefront_kernels import FORMATS

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern


def require_storable(pattern: Pattern, shapes: Iterable[tuple[int, int]], sparsity: float) -> None:
    """Check `Pattern.storage` for layers of these shapes [N, K], of a mixed pattern that of its candidates.

    Raises:
        InvalidSetting: key `pattern`: it names no family with its parameters, no family that there is, or parameters that the
            family's `from_dense` does not take.
    """
    for shape in dict.fromkeys(shapes):
        for own, level in pattern.choices(shape, sparsity):
            if (wrong := _complaint(own.storage(shape, level))) is not None:
                families = ", ".join(FORMATS)
                allowed = f"its storage names {wrong}, for a layer of {list(shape)}; families are {families}"
                raise InvalidSetting("pattern", own.name, allowed)


def _complaint(named: object) -> str | None:
    """What is wrong with what `storage` returned; None: nothing."""
    family, parameters = named if isinstance(named, tuple | list) and len(named) == 2 else (None, None)
    if not isinstance(family, str) or not isinstance(parameters, Mapping):
        return f"{named!r}, not a family and its parameters as in ('csr', {{}})"
    if family not in FORMATS:
        return f"{family!r}, which is no storage family"
    try:
        inspect.signature(FORMATS[family].from_dense).bind("weight", "mask", **parameters)
    except TypeError as error:
        return f"({family!r}, {parameters}), whose from_dense says: {error}"
    return None
