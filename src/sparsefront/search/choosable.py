"""What something may be chosen by, whatever the run: numbers of the result, and none of the reporting split."""

from collections.abc import Sequence

from sparsefront.errors import InvalidSetting
from sparsefront.report.field_types import alternatives
from sparsefront.report.result import result_fields


def require_choosable(names: Sequence[str], sweeper: str) -> None:
    """Each field that `optimize` names must be one that a search may choose by.

    Args:
        names: of fields, without their directions.
        sweeper: what would choose.
    Raises:
        InvalidSetting: there is none, one is no number, or one is of the reporting split.
    """
    if not names:
        raise InvalidSetting("optimize", [], f"{sweeper} needs at least one value of the record")
    numbers = {field.name for field in result_fields() if {int, float} & set(alternatives(field.hint))}
    for name in names:
        if name not in numbers:
            raise InvalidSetting("optimize", name, f"is no number, so {sweeper} would have nothing to optimize")
        if f"val_{name}" in numbers:
            allowed = f"is of the reporting split, by which {sweeper} must not choose: take val_{name}"
            raise InvalidSetting("optimize", name, allowed)
