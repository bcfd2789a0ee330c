"""Results of a study that count: of its plan, with their control, and of one dense network in each block."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from sparsefront.progress import counted
from sparsefront.results.candidates import is_pruned
from sparsefront.results.comparable import model_text, task_text
from sparsefront.results.record import Result

DIGITS = 8
"""Of digests in messages."""


def split_off_invalid(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """Results that may be ranked, in their order, and a line for each reason why others may not.

    Only results that record a plan are checked. The plan of a model and data set is that of its first run. A block has the
    trained results of one network, seed and recovery budget; all of it counts or nothing.
    """
    lines: list[str] = []
    for split_off in (_of_changed_plans, _without_control, _of_several_dense_networks):
        invalid, said = split_off([result for result in results if result.identity.plan_sha256 is not None])
        dropped = set(map(id, invalid))
        results, lines = [result for result in results if id(result) not in dropped], [*lines, *said]
    return list(results), lines


def _of_changed_plans(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    invalid, lines = [], []
    for subject, members in _grouped(results, _subject).items():
        first = min(members, key=lambda result: result.identity.time).identity.plan_sha256
        changed = Counter(plan for result in members if (plan := result.identity.plan_sha256) != first)
        invalid += [result for result in members if result.identity.plan_sha256 in changed]
        lines += [
            f"{subject}: not ranked, {counted(count, 'result')} of plan {plan[:DIGITS]}: the first run had {first[:DIGITS]}"
            for plan, count in changed.items()
        ]
    return invalid, lines


def _without_control(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    def has_control(result: Result) -> bool:
        return result.quality.dense_continued is not None or result.quality.dense_distilled is not None

    blocks = _grouped(filter(_is_trained, results), _block).values()
    invalid = [members for members in blocks if not any(map(has_control, members))]
    lines = [
        f"{_block_text(members[0])}: not ranked, {counted(len(members), 'result')} without a control"
        for members in invalid
    ]
    return [result for members in invalid for result in members], lines


def _of_several_dense_networks(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    invalid, lines = [], []
    for members in _grouped(filter(_is_trained, results), _block).values():
        dense = sorted({str(result.identity.dense_weights_sha256)[:DIGITS] for result in members})
        if len(dense) > 1:
            invalid += members
            lines.append(
                f"{_block_text(members[0])}: not ranked, {counted(len(members), 'result')} of {len(dense)} dense networks "
                f"({', '.join(dense)})"
            )
    return invalid, lines


def _is_trained(result: Result) -> bool:
    return is_pruned(result) and bool(result.cost.recovery_steps)


def _subject(result: Result) -> str:
    return f"{model_text(result)} on {task_text(result)}"


def _block(result: Result) -> tuple:
    return _block_text(result), str(sorted(result.choice.model_parameters.items()))


def _block_text(result: Result) -> str:
    return f"{_subject(result)}, seed {result.identity.seed}, {counted(result.cost.recovery_steps, 'step')}"


def _grouped(results: Iterable[Result], key: Callable[[Result], object]) -> dict[object, list[Result]]:
    groups: dict[object, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups
