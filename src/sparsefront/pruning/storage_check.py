"""Check a pattern's `storage`, which may be user code, before anything is trained.

This reads the kernel package's formats but changes no mask, so keys of stages exclude this file (`BOOKKEEPING` of
`artifacts.code_digest`): editing a format repeats no pruning or training.
"""

import inspect
from collections.abc import Iterable, Mapping

from sparsefront_kernels import FORMATS

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern


def require_storable(pattern: Pattern, shapes: Iterable[tuple[int, int]], sparsity: float) -> None:
    """Check `Pattern.storage` for layers of these shapes [N, K]; for a mixed pattern, that of its candidates.

    Raises:
        InvalidSetting: key `pattern`: it returns no (family, parameters) pair, an unknown family, or parameters that the
            family's `from_dense` does not accept.
    """
    for shape in dict.fromkeys(shapes):
        for own, level in pattern.choices(shape, sparsity):
            wrong = _complaint(own.storage(shape, level))
            if wrong is not None:
                families = ", ".join(FORMATS)
                allowed = f"its storage names {wrong}, for a layer of {list(shape)}; families are {families}"
                raise InvalidSetting("pattern", own.name, allowed)


def _complaint(named: object) -> str | None:
    """What is wrong with the value that `storage` returned; None if nothing."""
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
