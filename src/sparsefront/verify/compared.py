"""Compare every field of a record with the same run composed, evaluated and timed again."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sparsefront.measure.speedup import SPEEDUP_OVER
from sparsefront.options import shorten
from sparsefront.results.candidates import Metric
from sparsefront.results.field_types import differences, part_at
from sparsefront.results.record import ENERGY, Result, ResultField, result_fields
from sparsefront.tasks.outcomes import BLEU, Outcomes

HOLDS, DIFFERS, UNSEEN = "holds", "DIFFERS", "not verified"  # of a topic
OTHER, NOT_EVALUATED, VERIFIED = "differs", "not evaluated", "verified"  # of a record
NOT_REPEATED = ": not repeated"
RETRAINING = ("dense", "control", "seed", "training")  # topics that `--retrain` settles
TOPICS = {  # of the fields whose name matches; others are of their group's topic
    r".*(?<!autotune)_seconds|time|dense_reused|latency_predicted_ms": "seconds",
    r".*dense_(continued|distilled).*": "control",
    r"(val_)?dense(_low)?(_standard_error)?|dense_weights_sha256": "dense",
    r"(recovery_)?seed": "seed",
    r"dataset_digest": "data",
    r"(weights|masks)_sha256|checkpoint": "weights",
    r"samples_sha256|outcomes_sha256": "samples",
    r"gpu_clock_mhz": "latency",
    r"(dense|recovery)_(steps|epochs|(unlabeled_)?samples)|trainer_parameters|initial_weights": "training",
}
GROUP_TOPICS = {
    "identity": "environment",
    "quality": "accuracy",
    "speed": "latency",
    "size": "memory",
    "cost": "seconds",
}
STORED = ("environment", "seconds", "seed")  # topics that nothing but the result stored by the run itself can tell
OF_DEVICE = ("latency", "memory", "kernels", "environment")  # topics that another device fills otherwise
TIMED = re.compile(r"(latency(?!_device|_kernel)|tokens_per_s|throughput|speedup|fused_dense_latency|gpu_clock).*")
SHORT_TIMINGS = re.compile(
    r".*_us|candidates|variant_medians_ms|block_variants_ms|roofline_fraction|relative_error|quantization_error"
)
CHOSEN = re.compile(  # by timing, or worded by a version of the program
    SHORT_TIMINGS.pattern
    + r"|chosen|launch|notes|family|unsupported|low_precision_layers|layout|kernels|fused_blocks|latency_kernel"
    r"|execution_mode_.*|.*_variant|variants_not_timed|resident_bytes_.*|recipe|trainer_parameters|kernel_mode"
    r"|path|num_workers|split_by|train_file|dev_file|train_text|revision"  # what another run may have set otherwise
)
METRIC = re.compile(r"(val_)?(dense|dense_continued|dense_distilled|dense_low|masked|sparse)|extra_metrics")
# Rounding on another machine: a tenth of a point, or of a percent of a perplexity, unless one sample is more.
POINT = 0.001
OTHER_OUTCOMES, OTHER_TRANSLATIONS = 0.01, 0.05  # of the samples; in a translation one token changes all later ones
EQUAL = 1e-6  # relative
STANDARD_ERRORS = 2.0
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


def topic_of(item: ResultField) -> str:
    topics = (topic for pattern, topic in TOPICS.items() if re.fullmatch(pattern, item.name))
    return next(topics, GROUP_TOPICS.get(item.group, item.group))


@dataclass(frozen=True)
class Comparison:
    """A record next to the same run made again. How far numbers may lie apart follows from the repetition: no record widens it.

    Args:
        now: the run made again.
        unknown: fields that it fills, with values that are not known here.
        stored: the result that the run left in the user's own cache, which tells what no repetition can; None if it is gone.
        retrained: the network was trained again, so that metrics differ by two standard errors.
    """

    result: Result
    now: Result
    unknown: Collection[str] = ()
    stored: Result | None = None
    retrained: bool = False

    @property
    def metric(self) -> Metric:
        return Metric(self.now.quality.metric_name)

    @property
    def exact(self) -> bool:
        """Whether metrics are equal: the same machine, a CPU, and no training."""
        one, other = self.result.identity, self.now.identity
        same = all(
            getattr(one, name) == getattr(other, name) for name in ("processor", "threads", "gpu", "torch_version")
        )
        return same and other.gpu is None and not self.retrained

    @property
    def other_device(self) -> bool:
        """Whether it was evaluated on another device, and maybe in another dtype."""
        return self.result.identity.gpu != self.now.identity.gpu

    @property
    def other_program(self) -> bool:
        """Whether the cache keys may differ: another commit or library, or a checkout with changes."""
        one, other = self.result.identity, self.now.identity
        names = ("commit", "gpu", "torch_version", "lightning_version", "transformers_version")
        return any(getattr(one, name) != getattr(other, name) for name in names) or "dirty" in str(one.commit)

    @cached_property
    def own_noise(self) -> float:
        """Logarithm of the largest factor between the ends of an interval of the repetition."""
        speed = self.now.speed
        ends = [(speed.latency_dense_p20_ms, speed.latency_dense_p80_ms), (speed.speedup_low, speed.speedup_high)]
        ends.append((speed.latency_sparse_p20_ms, speed.latency_sparse_p80_ms))
        return min(math.log(2), max((math.log(high / low) for low, high in ends if low and high), default=0.0))

    def findings(self, names: Collection[str] | None = None) -> Iterator[Finding]:
        """A finding of each topic of the record or of these fields: first differences, what was not seen, or that it holds."""
        complete = self.result.identity.migrated_from is None  # an earlier version did not have every field
        topics: dict[str, tuple[list[str], list[tuple[str, str]]]] = {}
        for item in result_fields():
            stated = self.result.value_of(item.name)
            required = complete and item.name not in ENERGY
            if (names is None or item.name in names) and (required or stated not in (None, {}, [])):
                seen, verdicts = topics.setdefault(topic_of(item), ([], []))
                seen += [] if stated is None else [item.name]
                verdicts += ((verdict, details) for _, _, _, verdict, details in self.differing(item))
        for topic, (seen, verdicts) in topics.items():
            for verdict in (DIFFERS, UNSEEN):
                details = [details for one, details in verdicts if one == verdict]
                if details:
                    count = f"{len(details)} fields: " if len(details) > 3 else ""
                    yield Finding(topic, verdict, count + "; ".join(details[:3]))
                    break
            else:
                if seen:
                    yield Finding(topic, HOLDS, self._values(topic, seen))

    def _values(self, topic: str, names: list[str]) -> str:
        stated, speed = self.result.speed, self.now.speed
        if topic in ("accuracy", "dense", "control"):
            names = [one for one in names if METRIC.fullmatch(one) and isinstance(self.result.value_of(one), float)]
            pairs = [
                (one, *(self.metric.scale * row.value_of(one) for row in (self.result, self.now))) for one in names
            ]
            return "; ".join("{} {:.3f} in the record, {:.3f} now".format(*pair) for pair in pairs) or "none"
        if topic == "latency" and None not in (stated.speedup, speed.speedup):
            ends = f"{speed.speedup_low or math.nan:.3f} to {speed.speedup_high or math.nan:.3f}"
            return f"speedup {stated.speedup:.3f} in the record, {speed.speedup:.3f} now ({ends})"
        return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")

    def differing(self, item: ResultField) -> Iterator[tuple[tuple, Any, Any, str, str]]:
        """(path, stated, here, verdict, both in words) of each leaf of a field that is not the same but for rounding or noise."""
        name, topic, stated = item.name, topic_of(item), self.result.value_of(item.name)
        cached = None if self.stored is None else self.stored.value_of(name)
        if name in self.unknown:
            if stated is None and topic not in OF_DEVICE:
                yield (name,), None, None, DIFFERS, f"{name} is null, where the run fills it"
            elif self.stored is None or topic not in STORED:
                yield (name,), stated, None, UNSEEN, f"{name}={shorten(stated)}"
            elif stated != cached:
                text = f"{name} is {shorten(stated)} in the record, {shorten(cached)} in the cache"
                yield (name,), stated, cached, DIFFERS, text
            return
        for path, one, here in differences((name,), stated, self.now.value_of(name)):
            text = f"{'.'.join(map(str, path))} is {shorten(one)} in the record, {shorten(here)} now"
            in_cache, leaf, other = part_at(cached, path[1:]), str(path[-1]), here
            timed = item.group == "speed" and TIMED.fullmatch(leaf)
            if timed and TAIL.search(leaf):  # around the median now: the tails of a disturbed timing vary
                if self.stored is not None and in_cache == one:
                    continue
                other = part_at(vars(self.now.speed), (*path[:-1], TAIL.sub("", leaf)))
            by_cache = topic in STORED or any(CHOSEN.fullmatch(str(part)) for part in path)
            by_cache |= self.now.identity.gpu is not None and topic in ("kernels", "memory")
            if by_cache and not timed and self.stored is not None:
                if in_cache != one:
                    yield path, one, here, DIFFERS, f"{text}, {shorten(in_cache)} in the cache"
            elif (verdict := self._verdict(item, path, one, other)) != HOLDS:
                older = one is None and self.result.identity.migrated_from is not None
                null = None in (one, other) and not path[1:] and topic not in STORED
                unseen = verdict == UNSEEN or older or not null and (timed or by_cache)
                yield path, one, here, UNSEEN if unseen else DIFFERS, text + (NOT_REPEATED if timed and unseen else "")

    def _verdict(self, item: ResultField, path: tuple, stated: Any, here: Any) -> str:
        """Whether two different values are the same but for rounding or noise; UNSEEN: another device may make the difference."""
        name = str(path[-1])
        if self.retrained and name.endswith("_sha256"):  # of another training: rounding depends on the device
            return HOLDS
        if (
            self.retrained and name == "checkpoint" and self.other_program
        ):  # a key of the cache, with the digest of the code
            return HOLDS
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (stated, here)):
            return DIFFERS
        split = "val_" if str(path[0]).startswith("val_") else ""
        one_sample, apart = 1 / (self.now.value_of(f"{split}evaluated_samples") or math.inf), abs(stated - here)
        if METRIC.fullmatch(str(path[0])) and not self.exact:
            unit, least = (abs(stated), 0.0) if self.metric.less_is_better else (1.0, one_sample)
            allowed = max(POINT * unit, least)
            if self.retrained:
                error = 0.0 if path[1:] else self.now.value_of(f"{name}_standard_error") or 0.0
                allowed = max(STANDARD_ERRORS * math.sqrt(2) * error, one_sample)
            if apart <= allowed + 1e-9:
                return HOLDS
            return UNSEEN if self.other_device and apart <= max(OTHER_OUTCOMES * unit, 3 * least) else DIFFERS
        if name.endswith("_standard_error") and not self.exact:
            near = math.isclose(stated, here, rel_tol=0.1, abs_tol=one_sample)
            return HOLDS if self.retrained and stated <= 2 * max(here, one_sample) or near else DIFFERS
        if path[0] == "sparsity_achieved" and self.retrained:
            return HOLDS if apart <= 0.01 else DIFFERS
        measured = item.group == "speed" and TIMED.fullmatch(name) or any(map(SHORT_TIMINGS.fullmatch, map(str, path)))
        if measured or name == "gpu_clock_mhz" or self.retrained and name.endswith("_seconds"):
            # other programs share a processor; a GPU is timed alone
            latency, ratio = (3.0, 1.5) if self.now.identity.gpu is None else (1.1, 1.05)
            factor = ratio if name.startswith(tuple(SPEEDUP_OVER.values())) else latency
            allowed = math.log(factor) + self.own_noise + (math.log(2) if TAIL.search(name) else 0.0)
            return HOLDS if min(stated, here) > 0 and abs(math.log(stated / here)) <= allowed else DIFFERS
        return HOLDS if math.isclose(stated, here, rel_tol=EQUAL) else DIFFERS

    def outcomes(self, stored: Mapping[str, Outcomes], here: Mapping[str, Outcomes]) -> Iterator[Finding]:
        """Findings of the per-sample outcomes of the networks that were evaluated again: a few may differ by rounding."""
        for side in stored.keys() & here.keys():
            one, other, topic = stored[side], here[side], "dense" if side.startswith("dense") else "accuracy"
            labels = one.labels is not None and other.labels is not None and (one.labels != other.labels).any()
            if one.samples != other.samples or len(one) != len(other) or labels:
                yield Finding(topic, DIFFERS, f"outcomes.npz of {side} is of other samples than those evaluated now")
                continue
            apart = abs(one.values.astype(float) - other.values.astype(float))
            # of a perplexity they are nats of a window, which rounding changes in all of them
            differ = int((apart > (OTHER_OUTCOMES if self.metric.less_is_better and not self.exact else EQUAL)).sum())
            share = OTHER_TRANSLATIONS if other.metric == BLEU else OTHER_OUTCOMES
            if differ > (0 if self.exact else max(2, int(share * len(other)))):
                rounding = self.other_device and differ <= max(5, int(5 * share * len(other)))
                text = f"{differ} of {len(other)} samples of {side} differ from outcomes.npz"
                yield Finding(topic, UNSEEN if rounding else DIFFERS, text)
