"""Verify one stored result: check its record and export, and measure or train it again."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from sparsefront.artifacts.bounded_files import read_text_bounded
from sparsefront.config.experiment import Experiment
from sparsefront.config.schema import Config
from sparsefront.config.validate import validate
from sparsefront.errors import Edited, printable
from sparsefront.options import CONF
from sparsefront.provenance import code_commit
from sparsefront.pruning.layers import KEEPS_ALL
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.packed import in_a_folder
from sparsefront.results.record import Result
from sparsefront.runs import configured
from sparsefront.stages.export import check
from sparsefront.verify.again import ON_CPU, Composed, experiment_of, measure_again, planned, tell
from sparsefront.verify.command_line import NOT_EVALUATED, OTHER, VERIFIED, trusted
from sparsefront.verify.compared import DIFFERS, NOT_REPEATED, UNSEEN, Finding, Noise, compare, compare_outcomes
from sparsefront.verify.retrain import places, require_same_training, train_again, unknown_after_training
from sparsefront.verify.stored import (
    check_configuration,
    check_files,
    check_numbers,
    find_export,
    read_record,
    stored_outcomes,
    uncovered,
)


def check_row(row: Path, options: argparse.Namespace) -> str:
    """Verify a result; returns the verdict, as `command_line.status_of` takes it.

    Args:
        row: row.json, or a packed record.
        options: of the command line.
    Raises:
        InvalidSetting: it cannot be verified; Edited: it is not what was measured.
    """
    tell(f"reading the record {row} ...")
    with in_a_folder(row) as file:
        result = read_record(file)
        check_numbers(result, file)
        print("record: holds, and so do its files that are here")
        findings = list(
            _printed(_retrain(result, file, options) if options.retrain else _verify(result, file, options))
        )
    if not findings:
        return NOT_EVALUATED
    topics = {
        verdict: dict.fromkeys(one.topic for one in findings if one.verdict == verdict) for verdict in (DIFFERS, UNSEEN)
    }
    if topics[DIFFERS]:
        return OTHER
    seen = dict.fromkeys(one.topic for one in findings if one.topic not in topics[UNSEEN])
    return f"{VERIFIED}: {', '.join(seen)}; not verified: {', '.join(topics[UNSEEN])}" if topics[UNSEEN] else VERIFIED


def _printed(findings: Iterable[Finding]) -> Iterator[Finding]:
    for finding in findings:
        print(printable(finding), flush=True)
        yield finding


def _verify(result: Result, row: Path, options: argparse.Namespace) -> Iterator[Finding]:
    trust, overrides = trusted(options.overrides)
    export = find_export(result, row, options.checkpoint, options.cache_dir or Path(Config().cache_dir))
    if export is not None:
        tell("checking masks and weights ...")
        check_files(result, export)
        print(printable(f"masks and weights: hold, in {export.directory}"))
    if pictures := uncovered(row.parent):
        print(printable(f"not looked at: {', '.join(pictures)}, which say nothing that decides"))
    if options.record_only:
        return
    given = [*([] if options.cache_dir is None else [f"cache_dir={options.cache_dir}"]), *overrides]
    with experiment_of(result, row, given, partial(_composed, trust)) as (experiment, configuration):
        yield from _configuration(result, row, configuration, experiment, given)
        reasons = {name: why for name, why in result.sparsity.dense_layers.items() if why != KEEPS_ALL}
        spec = MaskSpec() if export is None else check(experiment, export, reasons, trust)
        own = _own_result(experiment, result)
        for attempt in range(TIMINGS):
            again = measure_again(experiment, result, export, spec)
            noise = Noise.between(result, again.now)
            findings = list(compare(result, again.now, again.unknown | _missing(row), own, noise))
            if not any(finding.told.endswith(NOT_REPEATED) for finding in findings) or attempt == TIMINGS - 1:
                break
            tell("the timing is not repeated, once more ...")
        yield from findings
        yield from compare_outcomes(stored_outcomes(result, row) or {}, again.outcomes, noise)


TIMINGS = 3  # other programs may disturb one


def _missing(row: Path) -> set[str]:
    """Fields with the digests of files that are not here."""
    files = {"samples_sha256": "samples.json", "outcomes_sha256": "outcomes.npz"}
    return {name for name, file in files.items() if not (row.parent / file).exists()}


def _retrain(result: Result, row: Path, options: argparse.Namespace) -> Iterator[Finding]:
    trust, overrides = trusted(options.overrides)
    given = [*places(options.cache_dir, overrides), *overrides]
    with experiment_of(result, row, given, partial(_composed, trust)) as (experiment, configuration):
        yield from _configuration(result, row, configuration, experiment, given)
        require_same_training(experiment, result)
        for name, here in planned(experiment, result).items():
            if None not in (here, result.value_of(name)) and here != result.value_of(name):
                told = f"{name} is {result.value_of(name)} in the record, {here} now: it would be another training"
                yield Finding("training", DIFFERS, told)
                return
    tell("training again ...")
    now, folder = train_again(result, row, given)
    print(printable(f"trained again: {folder}"))
    noise = Noise.between(result, now, retrained=True)
    yield from compare(result, now, unknown_after_training(result, now) | _missing(row), None, noise)


def _own_result(experiment: Experiment, result: Result) -> Result | None:
    """The result of this very measurement in the user's own cache: it tells what cannot be repeated, such as seconds."""
    stored = []
    for file in (experiment.cache_dir / "result").glob("*/row.json"):
        with suppress(ValueError):
            text = read_text_bounded(file)
            if all(f'"{value}"' in text for value in (result.identity.run_id, result.identity.time)):
                stored.append(Result.from_json(text))
    # a measurement may have two results, with a control and without
    return next((one for one in stored if one.choice.control == result.choice.control), None)


@contextmanager
def _composed(trust: Sequence[str], overrides: Sequence[str]) -> Iterator[Composed]:
    with configured(overrides, CONF) as (config, _):
        plain: Any = OmegaConf.to_container(config, resolve=False)
        yield validate(config, trust=trust), plain


def _configuration(
    result: Result, row: Path, configuration: dict[str, Any], experiment: Experiment, given: Sequence[str]
) -> Iterator[Finding]:
    """Check the copies of the configuration next to the record; another program version may have other defaults."""
    difference = check_configuration(configuration, experiment.choices, row, [*given, *ON_CPU])
    if difference is not None and result.identity.commit == code_commit():
        raise Edited("config.yaml", f"was edited: {difference}")
    if difference is not None:
        yield Finding("config.yaml", UNSEEN, f"{difference}; the result is of another version of the program")
