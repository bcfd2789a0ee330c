"""Compare every field of a record with the same run composed, evaluated and timed again."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparsefront.measure.speedup import SPEEDUP_OVER
from sparsefront.options import shortened
from sparsefront.results.field_types import differences
from sparsefront.results.metric import Metric
from sparsefront.results.record import Result, ResultField, result_fields
from sparsefront.tasks.outcomes import BLEU, Outcomes

HOLDS, DIFFERS, UNSEEN = "holds", "DIFFERS", "not verified"
NOT_REPEATED = ": not repeated"
RETRAINING = ("dense", "control", "seed", "training")  # topics that `--retrain` settles
TOPICS = {  # of the fields whose name matches; others are of their group's topic
    r".*(?<!autotune)_seconds|time|dense_reused": "seconds",
    r".*dense_(continued|distilled).*": "control",
    r"(val_)?dense(_low)?(_standard_error)?|dense_weights_sha256": "dense",
    r"(recovery_)?seed": "seed",
    r"dataset_digest": "data",
    r"(weights|masks)_sha256|checkpoint": "weights",
    r"samples_sha256|outcomes_sha256": "samples",
    r"gpu_clock_mhz": "latency",
    r"(dense|recovery)_(steps|epochs|(unlabeled_)?samples)|trainer_parameters|initial_weights": "training",
}
TOPIC_OF_GROUP = {
    "identity": "environment",
    "quality": "accuracy",
    "speed": "latency",
    "size": "memory",
    "cost": "seconds",
}
STORED = ("environment", "seconds", "seed")  # topics that nothing but the result stored by the run itself can tell
TIMED = re.compile(r"(latency(?!_device|_kernel)|tokens_per_s|throughput|speedup|fused_dense_latency|gpu_clock).*")
SHORT_TIMINGS = re.compile(
    r".*_us|candidates|variant_medians_ms|block_variants_ms|roofline_fraction|relative_error|quantization_error"
)
CHOSEN = re.compile(  # by timing, or worded by a version of the program
    r"chosen|launch|notes|family|unsupported|layout|kernels|fused_blocks|latency_kernel"
    r"|execution_mode_.*|.*_variant|variants_not_timed|resident_bytes_.*|recipe|trainer_parameters|kernel_mode"
    r"|path|num_workers|split_by|train_file|dev_file|revision"  # what another run may have set otherwise
)
# Rounding on another machine: a tenth of a point, or of a percent of a perplexity, unless one sample is more.
POINT = 0.001
OTHER_OUTCOMES, OTHER_TRANSLATIONS = 0.01, 0.05  # of the samples; in a translation one token changes all later ones
EQUAL = 1e-6  # relative
STANDARD_ERRORS = 2.0
MACHINE = ("processor", "threads", "gpu", "torch_version")
TAIL = re.compile(r"_(p20|p80|low|high)(?=_ms$|_dataset|$)")


@dataclass(frozen=True)
class Finding:
    """What one check found of a topic; `told` says both values, or why there are not two."""

    topic: str
    verdict: str
    told: str

    def __str__(self) -> str:
        settles = "; --retrain settles it" if self.verdict == UNSEEN and self.topic in RETRAINING else ""
        return f"{self.topic}: {self.verdict}, {self.told}{settles}"


@dataclass(frozen=True)
class Noise:
    """How far repeated numbers may lie apart, from the repetition alone: a record cannot widen it.

    Args:
        exact: metrics are equal: the same machine, a CPU, and no training.
        latency, ratio: logarithms of the largest factor between latencies, and between speedups.
        retrained: the network was trained again, so that metrics differ by two standard errors.
    """

    exact: bool
    latency: float
    ratio: float
    retrained: bool = False

    @classmethod
    def between(cls, result: Result, now: Result, *, retrained: bool = False) -> "Noise":
        speed, on_gpu = now.speed, now.identity.gpu is not None
        ends = [(speed.latency_dense_p20_ms, speed.latency_dense_p80_ms), (speed.speedup_low, speed.speedup_high)]
        ends.append((speed.latency_sparse_p20_ms, speed.latency_sparse_p80_ms))
        own = max((math.log(high / low) for low, high in ends if low and high), default=0.0)
        same = all(getattr(result.identity, name) == getattr(now.identity, name) for name in MACHINE)
        # other programs share a processor; a GPU is timed alone
        latency, ratio = (1.1, 1.05) if on_gpu else (3.0, 1.5)
        own = min(own, math.log(2))  # a repetition that is noisier says nothing
        return cls(same and not on_gpu and not retrained, math.log(latency) + own, math.log(ratio) + own, retrained)


def topic_of(item: ResultField) -> str:
    named = (topic for pattern, topic in TOPICS.items() if re.fullmatch(pattern, item.name))
    return next(named, TOPIC_OF_GROUP.get(item.group, item.group))


def compare(
    result: Result, now: Result, unknown: Collection[str], stored: Result | None, noise: Noise
) -> Iterator[Finding]:
    """Yield a finding of each topic of the record: its first difference, what was not seen of it, or that it holds.

    Args:
        now: the run made again.
        unknown: fields that it fills, with values that are not known here.
        stored: the result that the run left in the user's own cache, which tells what no repetition can; None if it is gone.
    """
    complete = result.identity.migrated_from is None
    topics: dict[str, tuple[list[str], list[Finding]]] = {}
    for item in result_fields():
        topic, stated = topic_of(item), result.value_of(item.name)
        if complete or stated not in (None, {}, []):  # an earlier version did not have it
            names, findings = topics.setdefault(topic, ([], []))
            names += [] if stated is None else [item.name]
            findings += _of_field(item, topic, result, now, item.name in unknown, stored, noise)
    for topic, (names, findings) in topics.items():
        for verdict in (DIFFERS, UNSEEN):
            if told := [finding.told for finding in findings if finding.verdict == verdict]:
                yield Finding(topic, verdict, (f"{len(told)} fields: " if told[3:] else "") + "; ".join(told[:3]))
                break
        else:
            if names:
                yield Finding(topic, HOLDS, _as_told(topic, names, result, now))


def _as_told(topic: str, names: list[str], result: Result, now: Result) -> str:
    scale, speed = Metric(result.quality.metric_name).scale, now.speed
    if topic in ("accuracy", "dense", "control"):
        sides = [name for name in names if isinstance(result.value_of(name), float) and "standard_error" not in name]
        pairs = [(name, scale * result.value_of(name), scale * now.value_of(name)) for name in sides]
        return "; ".join(f"{name} {stated:.3f} in the record, {here:.3f} now" for name, stated, here in pairs) or "none"
    if topic == "latency" and speed.speedup is not None and result.speed.speedup is not None:
        low, high = speed.speedup_low or math.nan, speed.speedup_high or math.nan
        return f"speedup {result.speed.speedup:.3f} in the record, {speed.speedup:.3f} now ({low:.3f} to {high:.3f})"
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _of_field(
    item: ResultField, topic: str, result: Result, now: Result, unknown: bool, stored: Result | None, noise: Noise
) -> Iterator[Finding]:
    stated, name = result.value_of(item.name), item.name
    kept = None if stored is None else stored.value_of(name)
    if unknown:
        if stated is None and topic not in ("latency", "memory", "kernels", "environment"):
            yield Finding(topic, DIFFERS, f"{name} is null, where the run fills it")
        elif stored is None or topic not in STORED:
            yield Finding(topic, UNSEEN, f"{name}={shortened(stated)}")
        elif stated != kept:
            yield Finding(
                topic, DIFFERS, f"{name} is {shortened(stated)} in the record, {shortened(kept)} in the cache"
            )
        return
    here = now.value_of(name)
    samples = result.value_of("val_evaluated_samples" if name.startswith("val_") else "evaluated_samples")
    for path, one, other in differences((name,), stated, here):
        told = f"{'.'.join(map(str, path))} is {shortened(one)} in the record, {shortened(other)} now"
        retimed = item.group == "speed" and TIMED.fullmatch(str(path[-1]))
        if retimed and TAIL.search(str(path[-1])):  # around the median now: the tails of a disturbed timing vary
            if stored is not None and _at(kept, path[1:]) == one:
                continue
            median = TAIL.sub("", str(path[-1]))
            other = _at(now.value_of(name), (*path[1:-1], median)) if path[1:] else now.value_of(median)
        by_cache = topic in STORED or _is_chosen(path) or now.identity.gpu and topic in ("kernels", "memory")
        null = None in (one, other) and len(path) == 1 and topic not in STORED
        if by_cache and not retimed and stored is not None:
            if (in_cache := _at(kept, path[1:])) != one:
                yield Finding(topic, DIFFERS, f"{told}, {shortened(in_cache)} in the cache")
        elif _agree(path, one, other, noise, now, samples) or noise.retrained and name.endswith("_sha256"):
            continue  # of another training: rounding depends on the device
        elif null or not (retimed or by_cache):
            yield Finding(topic, DIFFERS, told)
        else:
            yield Finding(topic, UNSEEN, f"{told}{NOT_REPEATED}" if retimed else told)


def _is_chosen(path: tuple) -> bool:
    return any(CHOSEN.fullmatch(str(part)) or SHORT_TIMINGS.fullmatch(str(part)) for part in path)


def _at(value: Any, path: tuple) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _agree(path: tuple, stated: Any, here: Any, noise: Noise, now: Result, samples: int | None) -> bool:
    """Whether two different values are the same but for rounding or noise."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (stated, here)):
        return False
    name, metric = str(path[-1]), Metric(now.quality.metric_name)
    if (path[0] in METRICS or path[0] == "extra_metrics") and not noise.exact:
        if noise.retrained:
            error = _errors(now).get(str(path[0]), 0.0)
            return abs(stated - here) <= max(STANDARD_ERRORS * math.sqrt(2) * error, 1 / (samples or math.inf)) + 1e-9
        allowed = POINT * abs(stated) if metric.less_is_better else max(POINT, 1 / (samples or math.inf))
        return abs(stated - here) <= allowed + 1e-9
    if name.endswith("_standard_error") and not noise.exact:
        one = 1 / (samples or math.inf)
        return stated <= 2 * max(here, one) if noise.retrained else math.isclose(stated, here, rel_tol=0.1, abs_tol=one)
    if path[0] == "sparsity_achieved" and noise.retrained:
        return abs(stated - here) <= 0.01
    short = any(SHORT_TIMINGS.fullmatch(str(part)) for part in path)
    if TIMED.fullmatch(name) or short or (noise.retrained and name.endswith("_seconds")):
        if min(stated, here) <= 0:
            return False
        allowed = noise.ratio if name.startswith(tuple(SPEEDUP_OVER.values())) else noise.latency
        return abs(math.log(stated / here)) <= allowed + (math.log(2) if TAIL.search(name) else 0)
    return math.isclose(stated, here, rel_tol=EQUAL)


METRICS = {
    f"{split}{side}"
    for split in ("", "val_")
    for side in ("dense", "dense_continued", "dense_distilled", "dense_low", "masked", "sparse")
}


def _errors(now: Result) -> dict[str, float]:
    return {name: now.value_of(f"{name}_standard_error") or 0.0 for name in METRICS}


def compare_outcomes(stored: Mapping[str, Outcomes], here: Mapping[str, Outcomes], noise: Noise) -> Iterator[Finding]:
    """Compare per-sample outcomes of the networks that were evaluated again: a few may differ by rounding."""
    for side in stored.keys() & here.keys():
        one, other, topic = stored[side], here[side], "dense" if side.startswith("dense") else "accuracy"
        labels = one.labels is not None and other.labels is not None and (one.labels != other.labels).any()
        if one.samples != other.samples or len(one) != len(other) or labels:
            yield Finding(topic, DIFFERS, f"outcomes.npz of {side} is of other samples than those evaluated now")
            continue
        differ = int((abs(one.values.astype(float) - other.values.astype(float)) > EQUAL).sum())
        share = OTHER_TRANSLATIONS if other.metric == BLEU else OTHER_OUTCOMES
        if differ > (0 if noise.exact else max(2, int(share * len(other)))):
            yield Finding(topic, DIFFERS, f"{differ} of {len(other)} samples of {side} differ from outcomes.npz")
