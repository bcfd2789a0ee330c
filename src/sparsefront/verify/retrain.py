"""`verify --retrain`: train a stored result again from its command, and compare."""

import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path

from sparsefront.artifacts.bounded_files import read_text_bounded
from sparsefront.config.experiment import Experiment
from sparsefront.errors import InvalidSetting
from sparsefront.options import CONF
from sparsefront.results.record import Result, result_fields
from sparsefront.results.run_folder import RESULT_FILE
from sparsefront.runs import run_overrides
from sparsefront.verify.again import device_of, overrides_of, tell

PLACE = Path(".cache") / "retrained"  # for stages and results of retraining; a killed one resumes there
NO_PICTURES = ("report.html=false", "report.plot=false")
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


def unknown_after_training(result: Result, now: Result) -> set[str]:
    """Fields that another training cannot repeat: when and where, and what another device measures otherwise."""
    names = {"time", "run_id", "config_hash", "commit", "dense_reused"}
    if device_of(result.identity) != device_of(now.identity):
        names |= {item.name for item in result_fields() if item.group in ("speed", "size", "kernels")}
    return names
