"""Group results that differ only in their seeds, and determine which results may share a plot."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import hypot, sqrt
from statistics import fmean
from typing import Any, get_args

import yaml

from sparsefront.measure.speedup import FEWEST_REPEATS
from sparsefront.options import CONF
from sparsefront.progress import counted
from sparsefront.pruning.collapse import BUDGET_KEYS, misses
from sparsefront.results.record import Result
from sparsefront.results.store import rank
from sparsefront.settings_class import Dtype
from sparsefront.tasks.outcomes import BLEU, lower_is_better

NONE = "–"


@dataclass(frozen=True)
class Metric:
    """One metric, by its name in results.

    Fractions are shown in percent, and losses in percentage points; so is BLEU, without a percent sign. Perplexity is shown
    unscaled, lower is better, and losses are shown in percent of the dense network's.
    """

    name: str

    @property
    def less_is_better(self) -> bool:
        return lower_is_better(self.name)

    @property
    def scale(self) -> float:
        """Factor from value to displayed value."""
        return 1.0 if self.less_is_better else 100.0

    @property
    def unit(self) -> str:
        return "" if self.less_is_better or self.name == BLEU else " %"

    @property
    def sign(self) -> int:
        """Factor after which more is better."""
        return -1 if self.less_is_better else 1

    @property
    def label(self) -> str:
        """Axis label."""
        return f"{self.words}{' (less is better)' if self.less_is_better else f',{self.unit}' if self.unit else ''}"

    @property
    def words(self) -> str:
        return self.name.upper() if self.name == BLEU else self.name.replace("_", " ")

    def text(self, value: float | None, error: float | None = None) -> str:
        """`97.22 %`, `97.22 ± 0.31 %`, `28.15 ± 0.40`."""
        if value is None:
            return NONE
        spread = "" if error is None else f" ± {self.scale * error:.2f}"
        return f"{self.scale * value:.2f}{spread}{self.unit}"

    def compute_loss(self, baseline: float, reached: float) -> float:
        """Percentage points below the baseline; for perplexity, percent above it. Negative if better."""
        return 100 * (reached / baseline - 1) if self.less_is_better else 100 * (baseline - reached)

    def format_loss(self, value: float, unit: str | None = None) -> str:
        """`0.40 points lost`, `0.08 points gained`; of a perplexity `12.00 % more`, `1.20 % less`.

        Args:
            unit: after the number; None = the metric's own.
        """
        size, worse = f"{abs(value):.2f}", round(value, 2) >= 0
        if self.less_is_better:
            return f"{size} % {'more' if worse else 'less'}"
        return f"{size}{' points' if unit is None else unit} {'lost' if worse else 'gained'}"

    def budget_text(self, numbers: str) -> str:
        """The allowed loss, for numbers such as `0.5 or 1`: `0.5 or 1 points lost`, `0.5 or 1 % more perplexity`."""
        if self.less_is_better:
            return f"{numbers} % more {self.words}"
        return f"{numbers} point{'' if numbers == '1' else 's'} lost"


# Measurement conditions of a result, and how they differ from those of other results.

FIELDS = {
    "gpu": "GPU",
    "driver": "driver",
    "cuda": "CUDA",
    "torch_version": "torch",
    "triton_version": "triton",
    "commit": "commit",
    "dataset_digest": "data",
}
KERNELS = "as of the commit"  # which contains their sources; versions of torch, triton and CUDA cover what they call
COMMIT_DIGITS = 9


def provenance(result: Result) -> dict[str, str]:
    """Name -> version or description; only what is known."""
    versions = {words: result.value_of(field) for field, words in FIELDS.items()}
    versions["kernels"] = None if result.identity.commit is None else KERNELS
    versions["measured"] = result.identity.time
    return {words: value_text(value) for words, value in versions.items() if value is not None}


def unlike_the_rest(results: Sequence[Result]) -> dict[str, list[str]]:
    """`run_id` -> how GPU, software, commit (and hence kernels) or data differ from most of these results.

    Only results that differ are included; if two versions are equally frequent, the first one counts as usual. The chosen
    kernels do not count, because they are chosen for each point; autotuning is covered by `conditions`.
    """
    unlike: dict[str, list[str]] = {}
    for field, words in FIELDS.items():
        values = [result.value_of(field) for result in results]
        usual = Counter(values).most_common(1)[0][0]
        name = f"{words} and kernels" if field == "commit" else words
        for result, value in zip(results, values):
            if value != usual:
                difference = f"{name} {value_text(value)}, elsewhere {value_text(usual)}"
                unlike.setdefault(result.identity.run_id, []).append(difference)
    return unlike


def list_uncommitted(results: Sequence[Result]) -> list[str]:
    """A line if code was measured that is in no commit, so that nobody can check it out."""
    dirty = sum((result.identity.commit or "").endswith("-dirty") for result in results)
    line = f"{dirty} of {len(results)} runs are of code with changes that no commit holds (commit ends in -dirty)"
    return [line] if dirty else []


def value_text(value: object) -> str:
    """A value of a record for readers: commits with nine digits, "unknown" for None."""
    text = "unknown" if value is None else str(value)
    digits = text.removesuffix("-dirty")
    return f"{digits[:COMMIT_DIGITS]}{text[40:]}" if len(digits) == 40 and re.fullmatch("[0-9a-f]+", digits) else text


def too_few_repeats(result: Result) -> int | None:
    """The number of repeats if it is too small for an interval; None if it is not, or not recorded."""
    repeats = result.speed.repeats
    return repeats if repeats is not None and repeats < FEWEST_REPEATS else None


def speedup_interval(result: Result, field: str = "speedup") -> tuple[float, float] | None:
    """The 95 % interval of a speedup; None if there is none, or too few repeats.

    Args:
        field: speedup, speedup_dataset, speedup_low_precision.
    """
    low, high = (result.value_of(f"{field}_{end}") for end in ("low", "high"))
    return None if low is None or high is None or too_few_repeats(result) else (low, high)


# The dense baseline of a sparse network's accuracy: the continued dense network, trained with the same budget and, if the
# recovery had a teacher, the same loss; if it exists.

BASELINES = {
    "dense_distilled": "dense trained on with the teacher",
    "dense_continued": "dense trained on",
    "dense": "dense as it was before pruning",
}
"""Field -> description, in order of preference if a result has several."""


def baseline_side(result: Result, *, held_out: bool = False) -> str:
    """The field of `BASELINES` for points lost, without `val_`; `dense` if the result has no other."""
    return next((side for side in BASELINES if _quality(result, side, held_out) is not None), "dense")


def baseline_quality(result: Result, *, held_out: bool = False) -> float | None:
    """The baseline's metric, a fraction; without a control, that of the network before pruning, which was trained for less.

    Args:
        held_out: on the held-out part of train instead of the reporting split.
    """
    return _quality(result, baseline_side(result, held_out=held_out), held_out)


def points_lost(result: Result, *, held_out: bool = False) -> float | None:
    """What a pruned network lost against its baseline (sparse if measured, else masked): percentage points, or as defined by
    `Metric.lost`.

    Args:
        held_out: as in `baseline_quality`.
    """
    baseline = baseline_quality(result, held_out=held_out)
    sparse, masked = (_quality(result, side, held_out) for side in ("sparse", "masked"))
    reached = masked if sparse is None else sparse
    return None if reached is None or baseline is None else metric_of(result).compute_loss(baseline, reached)


def error_of_lost(result: Result, *, held_out: bool = False) -> float | None:
    """Standard error of `points_lost` if the errors of the two networks are independent; None if they were not recorded."""
    sides = baseline_side(result, held_out=held_out), side_of(result)
    baseline, reached = (_quality(result, side, held_out) for side in sides)
    of_baseline, of_reached = (_quality(result, f"{side}_standard_error", held_out) for side in sides)
    if None in (baseline, reached, of_baseline, of_reached):
        return None
    if metric_of(result).less_is_better:  # of a ratio
        return 100 * reached / baseline * hypot(of_baseline / baseline, of_reached / reached)
    return 100 * hypot(of_baseline, of_reached)


def _quality(result: Result, name: str, held_out: bool) -> float | None:
    value: float | None = result.value_of(f"val_{name}" if held_out else name)
    return value


def metric_of(result: Result) -> Metric:
    """The metric of its qualities."""
    return Metric(result.quality.metric_name)


def two_baselines(results: Sequence[Result]) -> list[str]:
    """A line if these results have different controls, or only some have one: their points lost have different baselines."""
    runs = Counter(baseline_side(result) for result in results)
    if len(runs) < 2:
        return []
    clauses = [f"against {BASELINES[side]} in {counted(runs[side], 'run')}" for side in BASELINES if runs[side]]
    if runs["dense"]:
        clauses[-1] = f"against {BASELINES['dense']} in the {runs['dense']} without control=dense_continued"
    return [f"points lost are {', and '.join(clauses)}"]


# Candidates: results that differ only in their seeds; and which candidates may be chosen among.
#
# Choices are made by the metric on the held-out part of train (`val_*`), never by the reported one.

STRUCTURE = ("structured", "structured_parameters", "pattern", "pattern_parameters", "granularity")
"""Fields of `choice` that, with the kernels, define the network's structure; the others define how it is obtained."""


def smaller_first(result: Result) -> str | None:
    """How the network was made smaller before it was pruned: "depth 0.5 +"; None if it was not."""
    choice = result.choice
    return choice.structured and f"{choice.structured} {choice.structured_parameters.get('sparsity'):g} +"


@dataclass(frozen=True, eq=False)
class Candidate:
    """The runs of one choice at one sparsity, one per pair of seeds.

    Args:
        results: by seeds; of repeated runs only the newest, preferring those with the control, then timed ones.
    """

    results: tuple[Result, ...]

    @cached_property
    def pattern(self) -> str:
        """Pattern, with granularity and n:m if it has them, and with the precision if it is low."""
        first = self.results[0]
        own = (first.choice.pattern, first.choice.granularity, first.sparsity.n_of_m, low_precision_of(first))
        parts = (smaller_first(first), *own)
        return " ".join(str(part) for part in parts if part is not None)

    @property
    def sparsity(self) -> float:
        """The requested sparsity."""
        return self.results[0].sparsity.sparsity_target

    @cached_property
    def achieved(self) -> float | None:
        """Mean achieved sparsity of the runs that record it; None if none does."""
        sparsities = [
            value for value in (result.sparsity.sparsity_achieved for result in self.results) if value is not None
        ]
        return fmean(sparsities) if sparsities else None

    @cached_property
    def why_apart(self) -> str | None:
        """Why it is not compared with others at its sparsity: it achieved another one, or had a budget, for which the sparsity
        is only a ceiling. None if it is compared; also if no achieved sparsity is recorded.
        """
        if self.achieved is not None and misses(self.achieved, self.sparsity):
            return f"{self.achieved:.2f} achieved"
        return "has a budget" if budget_of(self.results[0]) else None

    @property
    def structure(self) -> str:
        """Equal for candidates whose networks differ only in training, scores and allocation."""
        first = self.results[0]
        chosen = (getattr(first.choice, name) for name in STRUCTURE)
        return _text([first.sparsity.sparsity_target, low_precision_of(first), self.kernel_mode, *chosen])

    @cached_property
    def kernel_mode(self) -> str | None:
        """That of its timed runs; runs without kernels only add accuracy."""
        return next(filter(is_timed, self.results), self.results[0]).choice.kernel_mode

    @property
    def recovery(self) -> str:
        """The value of the setting `recovery`."""
        return recovery_of(self.results[0])

    @property
    def seeds(self) -> tuple[tuple[int, int | None], ...]:
        return tuple(seeds_of(result) for result in self.results)

    @property
    def runs(self) -> tuple[str, ...]:
        """The results' `run_id`s."""
        return tuple(result.identity.run_id for result in self.results)

    @cached_property
    def can_be_chosen(self) -> bool:
        return all(val_quality(result) is not None for result in self.results)

    @cached_property
    def metric(self) -> Metric:
        return metric_of(self.results[0])

    @property
    def merit(self) -> float:
        """The value for choices: the mean on the held-out part, negated if lower is better."""
        return self.metric.sign * fmean(self.val)

    @cached_property
    def val(self) -> list[float]:
        """Held-out metrics, fractions, of the runs that have them."""
        return [value for value in (val_quality(result) for result in self.results) if value is not None]

    @cached_property
    def test(self) -> list[float]:
        """Metrics on the reporting split, fractions."""
        return [result.value_of(side_of(result)) for result in self.results]

    @property
    def speedups(self) -> list[float]:
        return [result.speed.speedup for result in self.results if result.speed.speedup is not None]

    def settings(self) -> dict[str, Any]:
        """All choices, `part.key` -> value, except seeds."""
        return _choice(self.results[0]) | {"kernel_mode": self.kernel_mode}


def candidates_of(results: Iterable[Result]) -> list[Candidate]:
    """Group pruned results by their choices, in order of first appearance."""
    by_choice: dict[str, list[Result]] = {}
    for result in filter(is_pruned, results):
        by_choice.setdefault(_text([result.sparsity.sparsity_target, _choice(result)]), []).append(result)

    def order(result: Result) -> tuple[int, bool, str]:
        control, time = rank(result)
        return control, is_timed(result), time

    candidates = []
    for of_choice in by_choice.values():
        modes = dict.fromkeys(result.choice.kernel_mode for result in of_choice if is_timed(result))
        for mode in modes or (None,):
            runs: dict[tuple, Result] = {}
            for result in of_choice:
                seeds, is_of_mode = seeds_of(result), not is_timed(result) or result.choice.kernel_mode == mode
                if is_of_mode and (seeds not in runs or order(result) > order(runs[seeds])):
                    runs[seeds] = result
            candidates.append(Candidate(tuple(runs[seeds] for seeds in sorted(runs, key=str))))
    return candidates


def is_timed(result: Result) -> bool:
    """Whether the pruned network has a latency."""
    return result.speed.latency_sparse_ms is not None or result.speed.speedup is not None


def pair_of(result: Result) -> tuple[object, ...]:
    """Equal for runs that differ in what was pruned and recovered alone: seeds, and the dense network."""
    return *seeds_of(result), result.identity.dense_weights_sha256


def seeds_of(result: Result) -> tuple[int, int | None]:
    """Seeds of the dense network and of its recovery."""
    again = result.identity.recovery_seed
    return result.identity.seed, result.identity.seed if again is None else again


def describe_target(result: Result) -> str:
    """The target of its allocation: a sparsity, or a speedup or latency with the sparsity as ceiling."""
    budget = budget_of(result)
    if budget:
        return f"with {budget}"
    return f"at sparsity {result.sparsity.sparsity_target:g}"


def budget_of(result: Result) -> str | None:
    """The speedup or latency budget of its allocation, as a setting; None if a sparsity was requested."""
    parameters = result.choice.allocation_parameters
    budgets = (f"allocation.{key}={parameters[key]:g}" for key in BUDGET_KEYS if parameters.get(key) is not None)
    return next(budgets, None)


def recovery_of(result: Result) -> str:
    """The value of the setting `recovery`; `none` if nothing was recovered."""
    return result.choice.recovery or "none"


def side_of(result: Result) -> str | None:
    """`sparse` if that was measured, else `masked`; None if nothing was pruned."""
    return next((side for side in ("sparse", "masked") if result.value_of(side) is not None), None)


def is_pruned(result: Result) -> bool:
    """Whether the quality of a pruned network was measured."""
    return side_of(result) is not None


def val_quality(result: Result) -> float | None:
    """The held-out metric for choices; None if this result may not be used for choices."""
    side = None if offers_no_choice(result) else side_of(result)
    return None if side is None else result.value_of(f"val_{side}")


def holds_nothing_out(result: Result) -> bool:
    """Whether it was intentionally trained on all of train."""
    return result.choice.dataset_parameters.get("valid_fraction") == 0


def offers_no_choice(result: Result) -> bool:
    """Whether nothing was intentionally held out, or the checkpoint may have seen what was."""
    return holds_nothing_out(result) or bool(result.quality.val_seen)


def why_not_picked(results: Iterable[Result]) -> list[str]:
    """One line per reason why some of these results cannot be used for choices, intentionally or because data was seen."""
    pruned = [result for result in results if is_pruned(result)]
    reasons = {
        "hold nothing out (dataset.valid_fraction=0)": sum(map(holds_nothing_out, pruned)),
        "are of a checkpoint that may have been trained on the held-out part (val_seen)": sum(
            bool(result.quality.val_seen) for result in pruned
        ),
    }
    lines = {why: f"{count} of {len(pruned)} results {why}: none of them is picked" for why, count in reasons.items()}
    return [line for why, line in lines.items() if reasons[why]]


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean, and standard deviation over runs (n - 1 in the denominator); None if there are too few values."""
    if not values:
        return None, None
    middle = fmean(values)
    squares = sum((value - middle) ** 2 for value in values)
    return middle, sqrt(squares / (len(values) - 1)) if len(values) > 1 else None


def _choice(result: Result) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in vars(result.choice).items():
        if name in ("control", "kernel_mode"):  # do not affect the pruned network
            continue
        if not isinstance(value, dict):
            flat[name] = value
            continue
        part = name.removesuffix("_parameters")
        settings = _defaults(part, getattr(result.choice, part, None)) | value
        flat |= {f"{part}.{key}": held for key, held in settings.items() if (part, key) != ("importance", "seed")}
    return flat | {"precision": precision_of(result)}


@lru_cache
def _defaults(part: str, name: str | None) -> dict[str, Any]:
    """Defaults of a choice's own settings: an older record has those of settings that were added after it."""
    file = CONF / part / ("default.yaml" if part == "recipe" else f"{name}.yaml")  # all recipes begin with that one
    if part not in ("pattern", "importance", "allocation", "schedule", "recovery", "recipe") or not file.is_file():
        return {}
    settings = yaml.safe_load(file.read_text(encoding="utf-8")).items()
    return {key: one for key, one in settings if key[0] != "_" and key != "defaults" and "${" not in str(one)}


def precision_of(result: Result) -> str | None:
    """Precision of products with the prunable weights; before version 10 all products had the dtype of the network."""
    return result.speed.dtype if result.speed.precision is None else result.speed.precision


def low_precision_of(result: Result) -> str | None:
    """fp8, fp8_static or int8; None for products in 16 bits or more."""
    precision = precision_of(result)
    return None if precision in get_args(Dtype) else precision


def low_baseline_is_faster(result: Result, field: str = "latency_dense{}_ms") -> bool:
    """Whether the low-precision dense network is faster than the 16-bit one, and so the baseline to beat.

    Args:
        field: of the latencies, with {} for the suffix of the low one.
    """
    low, dense = result.value_of(field.format("_low")), result.value_of(field.format(""))
    return low is not None and dense is not None and low < dense


def _text(content: Any) -> str:
    return json.dumps(content, sort_keys=True, default=str)


# What must agree, besides model, data, device, batch and dtype, before two results may share a plot.
#
# Each condition changes the meaning of a quality or speedup. A value missing in an older result does not equal any known
# value.

BUDGET, SPLIT = "budget", "split"


def conditions(result: Result) -> dict[str, str]:
    """Condition -> its value in words; only those that apply to this result."""
    quality, speed, digest = result.quality, result.speed, result.identity.dataset_digest
    limit = "" if quality.evaluate_limit is None else f" (limit {quality.evaluate_limit})"
    samples = f"{quality.evaluated_samples} test samples{limit}"
    descriptions = {
        "data": "data not recorded" if digest is None else f"data {digest}",
        "evaluation": "evaluated samples not recorded" if quality.evaluated_samples is None else samples,
        "held out": _describe_held_out(result),
    }
    split = split_of(result)
    if split is not None:
        descriptions[SPLIT] = f"split {split}"
    if result.choice.recovery is not None:
        descriptions[BUDGET] = _budget(result)
    if speed.latency_device is not None:
        modes, variants = speed.modes_autotuned, speed.variants_autotuned
        is_recorded = modes is not None and variants is not None
        search = f"fastest of {', '.join(modes)}; variants {', '.join(variants) or 'none'}" if is_recorded else ""
        descriptions["search"] = search or "searched execution modes not recorded"
    if speed.timed_image_size is not None:
        descriptions["image size"] = f"timed at {speed.timed_image_size} pixels"
    if speed.timed_mode is not None:
        descriptions["timed"] = f"a token behind a prompt, with a cache of {speed.cache_length}"
    if speed.latency_device == "cpu":
        descriptions["processor"] = processor_text(result)
    return descriptions


def is_unpadded(result: Result) -> bool:
    """Whether dense and sparse computed no padding (`inference.unpadded`)."""
    return "unpadded" in (result.speed.dense_variant or "").split("+")


def split_of(result: Result) -> str | None:
    """The rule by which rows were held out; None if none were. Older results without a rule held out row by row."""
    return None if holds_nothing_out(result) else result.choice.dataset_split or "rows"


def splits_apart(results: Iterable[Result]) -> list[str]:
    """A line per data set whose held-out rows differ: choices based on them are not comparable."""
    by_subject: dict[str, Counter[str]] = {}
    for result in results:
        split = split_of(result)
        if split is not None:
            subject = " ".join(filter(None, (result.choice.dataset, result.choice.dataset_task)))
            by_subject.setdefault(subject, Counter())[split] += 1
    return [
        f"{subject}: not ranked against each other, since other rows of train were held out: "
        + ", ".join(f"{counted(count, 'result')} of the split {split}" for split, count in sorted(counts.items()))
        for subject, counts in by_subject.items()
        if len(counts) > 1
    ]


def _describe_held_out(result: Result) -> str:
    """Number of held-out samples; with fewer, more was trained on."""
    samples = result.quality.val_evaluated_samples
    if samples is not None:
        return f"{samples} held-out samples" + (", maybe seen in training" if result.quality.val_seen else "")
    return "nothing held out" if holds_nothing_out(result) else "held-out samples not recorded"


def _budget(result: Result) -> str:
    """Steps, and samples per full step. Not the total of samples, which on equal data differs only by the smaller last batches
    of epochs, depending on when rounds begin; `differences` reports it.
    """
    steps = result.cost.recovery_steps
    if steps is None:
        return "recovery steps not recorded"
    if not steps:
        return "no recovery steps"
    of_a_step = _samples_of_a_step(result)
    on = f"on {result.cost.recovery_samples} samples" if of_a_step is None else f"of {of_a_step}"
    return f"recovery of {counted(steps, 'step')} {on}"


def _samples_of_a_step(result: Result) -> str | None:
    """`64 samples × 2 devices`; None if batch size, accumulation or devices are not recorded."""
    trainer, batch_size = result.choice.trainer_parameters, result.choice.recipe_parameters.get("batch_size")
    counts = {"batches": trainer.get("accumulate_grad_batches"), "devices": trainer.get("devices")}
    if batch_size is None or None in counts.values():
        return None
    return " × ".join([f"{batch_size} samples", *(f"{count} {what}" for what, count in counts.items() if count != 1)])


def processor_text(result: Result) -> str:
    """The CPU of a measurement, with the number of threads."""
    processor, threads = result.identity.processor, result.identity.threads
    if processor is None or threads is None:
        return "processor not recorded"
    return f"{processor}, {counted(threads, 'thread')}"
