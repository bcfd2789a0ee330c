"""Verify one stored result: check its record and export, and measure or train it again."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import OmegaConf

from sparsefront.artifacts.bounded_files import Unreadable
from sparsefront.config.schema import Config
from sparsefront.config.validate import validate
from sparsefront.errors import Edited, InvalidSetting, printable
from sparsefront.options import CONF
from sparsefront.provenance import code_commit
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.packed import RECORD, is_packed, unpacked
from sparsefront.results.record import Result
from sparsefront.runs import configured
from sparsefront.verify.command_line import (
    NOT_EVALUATED,
    NOT_TIMED,
    OTHER,
    OTHER_SPEED,
    STATUS,
    VERIFIED,
    trusted,
)
from sparsefront.verify.evaluate import (
    DIFFERS,
    NOT_REPEATED,
    ON_CPU,
    SKIPPED,
    Composed,
    Finding,
    experiment_of,
    initial_weights,
    measure_again,
    planned,
    tell,
)
from sparsefront.verify.retrain import compare_again, places, require_same_training, train_again
from sparsefront.verify.stored import (
    check_built,
    check_export,
    check_hydra_file,
    check_numbers,
    configuration_difference,
    find_export,
    read_record,
    stored_outcomes,
    uncovered,
)


def check_row(row: Path, options: argparse.Namespace) -> str:
    """Verify a result; returns one of the verdicts in `command_line.STATUS`.

    Args:
        row: row.json, or a packed record.
        options: of the command line.
    Raises:
        InvalidSetting: it cannot be verified; Edited: it is not what was measured.
    """
    tell(f"reading the record {row} ...")
    with _in_a_folder(row) as file:
        return _retrain(file, options) if options.retrain else _verify(file, options)


def _verify(row: Path, options: argparse.Namespace) -> str:
    trust, overrides = trusted(options.overrides)
    result = _record(row)
    export = find_export(result, row, options.checkpoint, options.cache_dir or Path(Config().cache_dir))
    if export is not None:
        tell("checking masks and weights ...")
        check_export(result, export)
        print(printable(f"masks and weights: hold, in {export.directory}"))
    if pictures := uncovered(row.parent):
        print(printable(f"not looked at: {', '.join(pictures)}, which say nothing that decides"))
    if options.record_only:
        return NOT_EVALUATED
    given = [*([] if options.cache_dir is None else [f"cache_dir={options.cache_dir}"]), *overrides]
    words = {VERIFIED}
    with experiment_of(result, row, given, partial(_composed, trust)) as (experiment, configuration):
        _check_configuration(result, row, configuration, experiment.choices, given)
        spec = MaskSpec() if export is None else check_built(experiment, export, trust)
        for finding in measure_again(experiment, result, export, spec, stored_outcomes(result, row), given):
            words.add(_word(finding))
            if finding.verdict == SKIPPED and export is None and finding.what == "accuracy, dense":
                words.add(NOT_EVALUATED)  # a dense result has nothing else to evaluate
    return next(word for word in STATUS if word in words)


def _retrain(row: Path, options: argparse.Namespace) -> str:
    trust, overrides = trusted(options.overrides)
    result = _record(row)
    given = [*places(options.cache_dir, overrides), *overrides]
    with experiment_of(result, row, given, partial(_composed, trust)) as (experiment, configuration):
        _check_configuration(result, row, configuration, experiment.choices, given)
        require_same_training(experiment, result)
        findings = chain([initial_weights(experiment, result)], planned(experiment, result, given))
        words = {_word(finding) for finding in findings}
    if OTHER in words:
        return OTHER  # retraining would produce something else
    tell("training again ...")
    now, folder = train_again(result, row, given)
    print(printable(f"trained again: {folder}"))
    words |= {_word(finding) for finding in compare_again(result, now)}
    return next(word for word in STATUS if word in words)


def _record(row: Path) -> Result:
    result = read_record(row)
    check_numbers(result, row)
    print("record: holds, and so do its files that are here")
    return result


def _word(finding: Finding) -> str:
    """Print a finding; returns its verdict on the row."""
    print(printable(finding), flush=True)
    if finding.verdict == DIFFERS:
        return OTHER
    if finding.verdict == NOT_REPEATED:
        return OTHER_SPEED
    if finding.verdict == SKIPPED and finding.what in ("speedup", "latency") and not finding.decides:
        return NOT_TIMED
    return VERIFIED


@contextmanager
def _in_a_folder(row: Path) -> Iterator[Path]:
    """Context with the row.json of a packed record, unpacked temporarily; other files are used directly."""
    if not is_packed(row):
        yield row
        return
    try:
        members = unpacked(row)
    except Unreadable as error:
        raise InvalidSetting("row", row, str(error)) from None
    with TemporaryDirectory() as folder:
        for name, content in members.items():
            file = Path(folder) / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        try:
            yield Path(folder) / RECORD
        except InvalidSetting as error:
            if type(error) is InvalidSetting and error.value == Path(folder) / RECORD:
                raise InvalidSetting(error.key, row, error.allowed) from None
            raise


@contextmanager
def _composed(trust: Sequence[str], overrides: Sequence[str]) -> Iterator[Composed]:
    with configured(overrides, CONF) as (config, _):
        plain = OmegaConf.to_container(config, resolve=False)
        assert isinstance(plain, dict)
        yield validate(config, trust=trust), {str(key): value for key, value in plain.items()}


def _check_configuration(
    result: Result, row: Path, configuration: dict, choices: dict[str, str], given: Sequence[str]
) -> None:
    """Check the copies of the configuration next to the record; another program version may have other defaults.

    Raises:
        Edited: they differ from what was run.
    """
    own = [*given, *ON_CPU]
    check_hydra_file(choices, row, own)
    difference = configuration_difference(configuration, row, own)
    if difference is None:
        return
    if result.identity.commit == code_commit():
        raise Edited("config.yaml", f"was edited: {difference}")
    print(printable(f"config.yaml: not verified, {difference}; the result is of another version of the program"))
