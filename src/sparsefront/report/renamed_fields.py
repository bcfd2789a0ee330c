"""Fields of results that earlier versions wrote, read under the names that they have now."""

from collections.abc import Mapping
from typing import Any

# group.old -> group.new
RENAMED_FIELDS = {
    "quality.kernel": "quality.sparse",
    "quality.kernel_standard_error": "quality.sparse_standard_error",
    "speed.wrapping_dense": "speed.execution_mode_dense",
    "speed.wrapping_sparse": "speed.execution_mode_sparse",
    "speed.wrapping_refusals": "speed.variants_not_timed",
}
# field that holds a mapping -> old key in it -> new key
RENAMED_INSIDE = {
    "choice.recipe_parameters": {"history": "save_epoch_weights", "keep_dense": "ignore"},
    "choice.trainer_parameters": {"accumulate": "accumulate_grad_batches"},
    "quality.extra_metrics": {"kernel": "sparse"},
}
# field that holds a mapping of mappings -> old key in each of those -> new key
RENAMED_PER_ENTRY = {"kernels.kernel_per_layer": {"refusals": "unsupported"}}

_FLAT = {old.partition(".")[2]: new.partition(".")[2] for old, new in RENAMED_FIELDS.items()}


def new_name(name: str) -> str | None:
    """The present name of a field that was renamed; None for every other name."""
    return _FLAT.get(name)


def with_new_names(group: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """One group of a result with present names, inside its mappings too. What has them already is unchanged."""
    return {
        _last(RENAMED_FIELDS.get(f"{group}.{name}", name)): with_new_keys(group, name, value)
        for name, value in fields.items()
    }


def with_new_columns(cells: Mapping[str, str]) -> dict[str, str]:
    """The cells of one CSV line by present names; where a table has both columns, the filled one counts."""
    found: dict[str, str] = {}
    for name, text in cells.items():
        new = _FLAT.get(name, name)
        found[new] = text or found.get(new, "")
    return found


def with_new_keys(group: str, name: str, value: Any) -> Any:
    """The value of one field with present names inside."""
    inside, per_entry = RENAMED_INSIDE.get(f"{group}.{name}"), RENAMED_PER_ENTRY.get(f"{group}.{name}")
    if inside and isinstance(value, dict):
        return _renamed(value, inside)
    if per_entry and isinstance(value, dict):
        return {key: _renamed(entry, per_entry) if isinstance(entry, dict) else entry for key, entry in value.items()}
    return value


def _renamed(mapping: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in mapping.items()}


def _last(name: str) -> str:
    return name.rpartition(".")[2]
