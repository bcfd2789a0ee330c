"""Verify one stored result: check its record and export, and measure or train it again."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_text_bounded
from sparsefront.config.schema import Config
from sparsefront.errors import Edited, InvalidSetting, printable
from sparsefront.export.save import require_packages
from sparsefront.options import CONF, shorten
from sparsefront.provenance import code_commit
from sparsefront.pruning.layers import KEEPS_ALL
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.records import check_numbers, find_result, read_outcomes, read_record
from sparsefront.results.packed import OUTCOMES, RECORD, SAMPLES, in_a_folder
from sparsefront.results.record import Result
from sparsefront.results.run_folder import RESULT_FILE
from sparsefront.runs import other_configuration, run_overrides
from sparsefront.stages import export as stage_export
from sparsefront.verify import again, compared
from sparsefront.verify.compared import DIFFERS, NOT_EVALUATED, OTHER, UNSEEN, VERIFIED, Comparison, Finding

COVERED = (RECORD, SAMPLES, OUTCOMES, "checkpoint", "checkpoint.txt", ".hydra")
TRUST, TIMINGS = "trust=", 3  # other programs may disturb one
RETRAINED = Path(".cache") / "retrained"  # stages and results of retraining; a killed one resumes there


def check_row(row: Path, options: argparse.Namespace) -> str:
    """Verify a result; returns the verdict, as `worst_status` takes it.

    Args:
        row: row.json, or a packed record.
        options: of the command line.
    Raises:
        InvalidSetting: it cannot be verified; Edited: it is not what was measured.
    """
    again.tell(f"reading the record {row} ...")
    topics: dict[str, dict[str, None]] = {}  # verdict -> topics
    with in_a_folder(row) as file:
        result = read_record(file)
        check_numbers(result, file)
        print("record: holds, and so do its files that are here")
        for finding in (_retrain if options.retrain else _verify)(result, file, options):
            print(printable(finding), flush=True)
            topics.setdefault(finding.verdict, {})[finding.topic] = None
    if not topics:
        return NOT_EVALUATED
    unseen = topics.pop(UNSEEN, {})
    if DIFFERS in topics or not unseen:
        return OTHER if DIFFERS in topics else VERIFIED
    seen = (topic for group in topics.values() for topic in group if topic not in unseen)
    return f"{VERIFIED}: {', '.join(seen)}; not verified: {', '.join(unseen)}"


def _split_trust(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into the packages of `trust=[a,b]` and the overrides."""
    package_lists = [text.removeprefix(TRUST).strip("[]") for text in arguments if text.startswith(TRUST)]
    packages = [package.strip(" '\"") for text in package_lists for package in text.split(",")]
    require_packages(packages)
    return packages, [text for text in arguments if not text.startswith(TRUST)]


def _verify(result: Result, row: Path, options: argparse.Namespace) -> Iterator[Finding]:
    trust, overrides = _split_trust(options.overrides)
    again.tell("checking masks and weights ...")
    export = stage_export.find(result, row, options.checkpoint, options.cache_dir or Path(Config().cache_dir))
    if export is not None:
        print(printable(f"masks and weights: hold, in {export.directory}"))
    others = (shorten(path.name, 60) for path in sorted(row.parent.iterdir()) if path.name not in COVERED)
    pictures = ", ".join(islice(others, 8))
    if pictures:
        print(printable(f"not looked at: {pictures}, which say nothing that decides"))
    if options.record_only:
        return
    all_overrides = [*([] if options.cache_dir is None else [f"cache_dir={options.cache_dir}"]), *overrides]
    with again.experiment_of(result, row, all_overrides, trust) as (experiment, configuration):
        yield from _configuration(result, row, configuration, experiment.choices, all_overrides)
        reasons = {name: why for name, why in result.sparsity.dense_layers.items() if why != KEEPS_ALL}
        spec = MaskSpec() if export is None else stage_export.check(experiment, export, reasons, trust)
        own = find_result(experiment.cache_dir, result)
        for attempt in range(TIMINGS):
            now, unknown, outcomes = again.measure_again(experiment, result, export, spec)
            comparison = Comparison(result, now, unknown | _missing(row), own)
            findings = list(comparison.findings())
            if not any(finding.told.endswith(compared.NOT_REPEATED) for finding in findings) or attempt == TIMINGS - 1:
                break
            again.tell("the timing is not repeated, once more ...")
        yield from findings
        yield from comparison.outcomes(read_outcomes(result, row) or {}, outcomes)


def _missing(row: Path) -> set[str]:
    """Fields with the digests of files that are not here."""
    files = {"samples_sha256": SAMPLES, "outcomes_sha256": OUTCOMES}
    return {name for name, file in files.items() if not (row.parent / file).exists()}


def _retrain(result: Result, row: Path, options: argparse.Namespace) -> Iterator[Finding]:
    """Compare with the whole pipeline run again, in a cache of its own; reuses stages that a killed call had finished."""
    trust, overrides = _split_trust(options.overrides)
    places = {"cache_dir": options.cache_dir or RETRAINED / "cache", "results_dir": RETRAINED / "results"}
    all_overrides = [*(f"{key}={folder}" for key, folder in places.items()), *overrides]  # the last one of a key counts
    with again.experiment_of(result, row, all_overrides, trust, training=True) as (experiment, configuration):
        yield from _configuration(result, row, configuration, experiment.choices, all_overrides)
        plan = again.plan_training(experiment, result) | {"initial_weights": experiment.model.fingerprint()}
        plan = {name: value for name, value in plan.items() if value is not None}
        planned_now = Comparison(result, result.with_values(plan))
        other = [finding for finding in planned_now.findings(plan) if finding.verdict == DIFFERS]
        if other:
            yield from other  # it would be another training
            return
        own = find_result(cache := Path(Config().cache_dir), result)
        if own is None:
            print(f"seconds, environment: the record's word, since {cache} does not have the result of the run itself")
        again.tell("training again ...")
        began = time.time()
        with redirect_stdout(sys.stderr):  # stdout has only the answers
            pictures = ("report.html=false", "report.plot=false")
            folder = run_overrides([*again.overrides_of(result, row, all_overrides), *pictures], CONF)
    now = Result.from_json(read_text_bounded(folder / RESULT_FILE))
    if now.identity.record_sha256 == result.identity.record_sha256:
        allowed = "holds this run, so that nothing was trained: name another --cache-dir"
        raise InvalidSetting("cache_dir", experiment.cache_dir, allowed)
    if datetime.fromisoformat(now.identity.time).timestamp() < began:
        again.tell(f"it was trained again before, and measured {now.identity.time}")
    print(printable(f"trained again: {folder}"))
    unknown = {"time", "run_id", "config_hash", "commit", "dense_reused"} | _missing(row)
    unknown |= again.OF_DEVICE if again.device_of(result.identity) != again.device_of(now.identity) else set()
    yield from Comparison(result, now, unknown, own, retrained=True).findings()


def _configuration(
    result: Result, row: Path, configuration: dict[str, Any], choices: Mapping[str, str], given: Sequence[str]
) -> Iterator[Finding]:
    """Compare the copies of the configuration next to a record; another program version may have other defaults."""
    difference = other_configuration(row.parent, configuration, choices, [*given, *again.ON_CPU])
    if difference is not None and result.identity.commit == code_commit():
        raise Edited("config.yaml", f"was edited: {difference}")
    if difference is not None:
        yield Finding("config.yaml", UNSEEN, f"{difference}; the result is of another version of the program")
