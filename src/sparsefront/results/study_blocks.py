"""Results of a study that count: of its plan, with their control, and of one dense network in each block."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from sparsefront.progress import counted
from sparsefront.results.candidates import is_pruned
from sparsefront.results.comparable import model_text, task_text
from sparsefront.results.record import Result

PLAN_DIGITS = 8
"""Of digests in messages."""


def split_off_invalid(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """Results that may be ranked, in their order, and a line for each reason why others may not.

    Only results that record a plan are checked. The plan of a model and data set is that of its first run. A block has the
    trained results of one network, seed and recovery budget; all of it counts or nothing.
    """
    lines: list[str] = []
    for find_invalid in (_of_changed_plans, _without_control, _of_several_dense_networks):
        invalid, reasons = find_invalid([result for result in results if result.identity.plan_sha256 is not None])
        dropped = set(map(id, invalid))
        results, lines = [result for result in results if id(result) not in dropped], [*lines, *reasons]
    return list(results), lines


def find_split_block(result: Result, others: Iterable[Result]) -> str | None:
    """Why the block of a result will not be ranked with these others: its dense network is not theirs. None if it is."""
    by_run = {other.identity.run_id: other for other in (*others, result)}  # it may be among them
    members = [other for other in by_run.values() if other.identity.plan_sha256 and _block(other) == _block(result)]
    return next(iter(_of_several_dense_networks(members)[1]), None)


def _of_changed_plans(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    invalid, lines = [], []
    for subject, members in _group_by(results, _subject).items():
        first = min(members, key=lambda result: result.identity.time).identity.plan_sha256
        changed = [result for result in members if result.identity.plan_sha256 != first]
        invalid += changed
        for plan, count in Counter(result.identity.plan_sha256 for result in changed).items():
            what = f"{counted(count, 'result')} of plan {plan[:PLAN_DIGITS]}: the first run had {first[:PLAN_DIGITS]}"
            lines.append(f"{subject}: not ranked, {what}")
    return invalid, lines


def _without_control(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    def why(members: list[Result]) -> str | None:
        controls = [(result.quality.dense_continued, result.quality.dense_distilled) for result in members]
        return "without a control" if all(control == (None, None) for control in controls) else None

    return _invalid_blocks(results, why)


def _of_several_dense_networks(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    def why(members: list[Result]) -> str | None:
        dense = sorted({str(result.identity.dense_weights_sha256)[:PLAN_DIGITS] for result in members})
        return f"of {len(dense)} dense networks ({', '.join(dense)})" if len(dense) > 1 else None

    return _invalid_blocks(results, why)


def _invalid_blocks(
    results: Sequence[Result], why: Callable[[list[Result]], str | None]
) -> tuple[list[Result], list[str]]:
    trained = [result for result in results if is_pruned(result) and result.cost.recovery_steps]
    reasons = [(members, why(members)) for members in _group_by(trained, _block).values()]
    return [result for members, reason in reasons if reason for result in members], [
        f"{_block_text(members[0])}: not ranked, {counted(len(members), 'result')} {reason}"
        for members, reason in reasons
        if reason
    ]


def _subject(result: Result) -> str:
    return f"{model_text(result)} on {task_text(result)}"


def _block(result: Result) -> tuple:
    return _block_text(result), str(sorted(result.choice.model_parameters.items()))


def _block_text(result: Result) -> str:
    return f"{_subject(result)}, seed {result.identity.seed}, {counted(result.cost.recovery_steps, 'step')}"


def _group_by(results: Iterable[Result], key: Callable[[Result], object]) -> dict[object, list[Result]]:
    groups: dict[object, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups
