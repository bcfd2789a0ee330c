"""`verify --retrain`: train a stored result again from its command, and compare."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from datetime import datetime
from math import hypot
from pathlib import Path

from sparsefront.artifacts.bounded_files import read_text_bounded
from sparsefront.config.experiment import Experiment
from sparsefront.errors import InvalidSetting
from sparsefront.options import CONF
from sparsefront.results.candidates import metric_of
from sparsefront.results.record import Result, result_fields
from sparsefront.results.run_folder import RESULT_FILE
from sparsefront.runs import run_overrides
from sparsefront.verify.evaluate import DIFFERS, HOLDS, NOT_REPEATED, SKIPPED, Finding, device_of, overrides_of, tell

PLACE = Path(".cache") / "retrained"  # for stages and results of retraining; a killed one resumes there
NO_PICTURES = ("report.html=false", "report.plot=false")
ERROR = "_standard_error"
SPEEDUPS = ("speedup", "speedup_dataset")
STANDARD_ERRORS = 2.0  # maximum difference of two evaluations, in standard errors of the difference
OTHER_ERROR = 2.0  # maximum ratio of standard errors: a huge one would excuse anything
OTHER_SPARSITY = 0.01
# trainer settings that depend on the device, or only affect rounding
OF_THE_DEVICE = ("device", "precision", "deterministic", "compile", "cuda_graphs", "exchange_gradients")


def places(cache_dir: Path | None, given: Sequence[str]) -> list[str]:
    """Overrides that keep retraining separate from the user's cache and results, or put it where requested."""
    named = {text.partition("=")[0] for text in given}
    chosen = {"cache_dir": cache_dir or PLACE / "cache", "results_dir": PLACE / "results"}
    return [f"{key}={folder}" for key, folder in chosen.items() if key not in named]


def require_same_training(experiment: Experiment, result: Result) -> None:
    """Check that the trainer is that of the record, except for device-dependent settings.

    Raises:
        InvalidSetting: another setting differs; names the key.
    """
    stored, here = result.choice.trainer_parameters, experiment.trainer.cache_key()
    free = OF_THE_DEVICE if stored.get("device") != here["device"] else ()
    for key in {**stored, **here}:
        if key not in free and stored.get(key) != here.get(key):
            told = (
                f"is {stored.get(key)} in the record, and another training gives other weights: name it in the command"
            )
            raise InvalidSetting(f"trainer.{key}", here.get(key), told)


def train_again(result: Result, row: Path, given: Sequence[str]) -> tuple[Result, Path]:
    """Run the whole pipeline, reusing stages that a killed call had finished.

    Args:
        given: the user's overrides, with the folders of `places`.
    Returns:
        the new result, and the folder of its run.
    Raises:
        InvalidSetting: raised by the run, or the cache contains the very run of the record.
    """
    began = time.time()
    with redirect_stdout(sys.stderr):  # stdout has only the answers
        folder = run_overrides([*overrides_of(result, row, given), *NO_PICTURES], CONF)
    now = Result.from_json(read_text_bounded(folder / RESULT_FILE))
    if now.identity.record_sha256 == result.identity.record_sha256:
        cache = next(text.partition("=")[2] for text in reversed(given) if text.startswith("cache_dir="))
        raise InvalidSetting(
            "cache_dir", cache, "holds this run, so that nothing was trained: name another --cache-dir"
        )
    if datetime.fromisoformat(now.identity.time).timestamp() < began:
        tell(f"it was trained again before, and measured {now.identity.time}")
    return now, folder


def compare_again(result: Result, now: Result) -> Iterator[Finding]:
    """Compare the record with the result of retraining."""
    same_device = device_of(result.identity) == device_of(now.identity)
    yield _weights(result, now)
    yield _sparsity(result, now)
    for field in result_fields():
        name = field.name.removesuffix(ERROR)
        if field.name.endswith(ERROR) and result.value_of(name) is not None:
            yield _quality(name, result, now)
    if result.speed.speedup is None and result.speed.latency_dense_ms is None:
        return
    if not same_device:
        told = f"measured on {device_of(result.identity)}, trained again on {device_of(now.identity)}"
        yield Finding("speedup", SKIPPED, f"{told}: accuracy alone is compared", decides=False)
        return
    for name in SPEEDUPS:
        if result.value_of(name) is not None:
            yield _speedup(name, result, now)


def _weights(result: Result, now: Result) -> Finding:
    """Compare weights; equal bits are not required, because rounding depends on the device and mostly on the run on a GPU."""
    names = ("dense_weights_sha256", "weights_sha256", "masks_sha256")
    pairs = [(getattr(result.identity, name), getattr(now.identity, name)) for name in names]
    if all(stored == again for stored, again in pairs):
        return Finding("weights", HOLDS, "the same to the bit")
    return Finding("weights", SKIPPED, "other bits than the record's: another rounding in training", decides=False)


def _sparsity(result: Result, now: Result) -> Finding:
    stored, again = result.sparsity.sparsity_achieved, now.sparsity.sparsity_achieved
    if stored is None or again is None:
        return Finding("sparsity", SKIPPED, "the record does not say", decides=False)
    verdict = HOLDS if abs(stored - again) <= OTHER_SPARSITY else DIFFERS
    return Finding("sparsity", verdict, f"{stored:.4f} achieved in the record, {again:.4f} now")


def _quality(name: str, result: Result, now: Result) -> Finding:
    """Compare a metric on one split, such as `val_sparse`: within two standard errors of the difference, or one sample."""
    network = name.removeprefix("val_")
    split = name.removesuffix(network)
    metric = metric_of(result)
    what = f"{result.quality.metric_name}, {network}" + (", held out" if split else "")
    (stored, error, samples), (again, new_error, new_samples) = (
        (
            one.value_of(name),
            one.value_of(f"{name}{ERROR}"),
            one.value_of(f"{split}evaluated_samples"),
        )
        for one in (result, now)
    )
    if error is None or samples is None:
        return Finding(what, SKIPPED, "the record is of an earlier version, which held no standard error")
    if again is None or new_error is None:
        return Finding(what, DIFFERS, f"{metric.scale * stored:.3f} in the record, and nothing was measured now")
    if samples != new_samples:
        return Finding(what, DIFFERS, f"of {samples} samples in the record, of {new_samples} now")
    one_sample = 0.0 if metric.less_is_better else 1 / samples
    if error > OTHER_ERROR * max(new_error, one_sample):
        return Finding(what, DIFFERS, f"its standard error is {error:.6g} in the record, {new_error:.6g} now")
    allowed = max(STANDARD_ERRORS * hypot(error, new_error), one_sample)
    apart = abs(again - stored)
    verdict = HOLDS if apart <= allowed + 1e-9 else DIFFERS
    scale, unit = metric.scale, "" if metric.less_is_better else " points"
    told = f"{scale * stored:.3f} in the record, {scale * again:.3f} now"
    told += f", apart by {scale * apart:.3g}{unit}; two standard errors are {scale * allowed:.3g}"
    return Finding(what, verdict, told)


def _speedup(name: str, result: Result, now: Result) -> Finding:
    """Check whether the two intervals overlap."""
    ends = [tuple(one.value_of(f"{name}{end}") for end in ("", "_low", "_high")) for one in (result, now)]
    if any(value is None for one in ends for value in one):
        return Finding(f"interval of {name}", SKIPPED, "one of the two has none", decides=False)
    (stored, low, high), (again, new_low, new_high) = ends
    within = low <= new_high and new_low <= high
    told = f"{stored:.3f} in the record ({low:.3f} to {high:.3f}), {again:.3f} now ({new_low:.3f} to {new_high:.3f})"
    told += f": the intervals {'overlap' if within else 'do not overlap'}"
    return Finding(name, HOLDS if within else NOT_REPEATED, told, decides=False)
