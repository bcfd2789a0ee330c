"""What must agree, beyond model, data, device, batch and dtype, before two rows may share a plot.

Each makes a quality or a speedup another quantity. What a row does not hold, being of an older version, agrees with nothing
that is known.
"""

from sparsefront.report.row import Row


def conditions(row: Row) -> dict[str, str]:
    """Condition -> what it was, in words; only those that apply to this row."""
    found = {"evaluation": _evaluation(row)}
    if row.speed.latency_device is not None:
        found["search"] = _search(row)
    if row.speed.latency_device == "cpu":
        found["processor"] = processor_text(row)
    return found


def _evaluation(row: Row) -> str:
    samples, limit = row.quality.evaluated_samples, row.quality.evaluate_limit
    if samples is None:
        return "evaluated samples not recorded"
    return f"{samples} test samples" if limit is None else f"{samples} test samples (limit {limit})"


def _search(row: Row) -> str:
    modes, variants = row.speed.modes_searched, row.speed.variants_searched
    if modes is None or variants is None:
        return "searched execution modes not recorded"
    return f"fastest of {', '.join(modes)}; variants {', '.join(variants) or 'none'}"


def processor_text(row: Row) -> str:
    """The CPU that was measured on, with its threads."""
    processor, threads = row.identity.processor, row.identity.threads
    if processor is None or threads is None:
        return "processor not recorded"
    return f"{processor}, {threads} thread{'' if threads == 1 else 's'}"
