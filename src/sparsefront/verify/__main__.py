"""python -m sparsefront.verify row.json [row.json ...] [OVERRIDES]"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and os.getcwd() in sys.path[:1]:
    del sys.path[0]  # `python -m` puts the working directory there, and a stranger's folder may hold a torch.py

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import OmegaConf

from sparsefront.artifacts.bounded_files import Unreadable
from sparsefront.config.schema import Config
from sparsefront.config.validate import validate
from sparsefront.errors import Edited, InvalidSetting, printable
from sparsefront.options import CONF, program_command, shortened
from sparsefront.progress import ending_with_its_reader
from sparsefront.provenance import code_commit
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.results.packed import RECORD, is_packed, unpacked
from sparsefront.results.record import Result
from sparsefront.runs import configured
from sparsefront.verify.evaluate import (
    DIFFERS,
    NOT_REPEATED,
    ON_CPU,
    SKIPPED,
    Composed,
    Finding,
    experiment_of,
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

OTHER, NOT_EVALUATED, VERIFIED = "differs", "not evaluated", "verified"
NOT_TIMED, OTHER_SPEED = "verified, not timed here", "verified, speedup not repeated"
STATUS = {OTHER: 1, NOT_EVALUATED: 2, NOT_TIMED: 0, OTHER_SPEED: 0, VERIFIED: 0}  # the worst first
TRUST = "trust="

# COMMAND: as it was started.
DESCRIPTION = """\
Whether a stored result still is what was measured, and whether measuring again gives the same. Nothing that came with the result
runs as code; docs/reviewing.md says what is read, what runs, and what no check can see.

First the record: its own sha256, those of its files, masks and weights, and the numbers that follow from others (latencies from
samples.json, metrics from outcomes.npz). Then the export: files as stored, pruned weights zero, the compressed form that kernels
read the same weights, manifest and spec what the configuration builds and the masks obey. One that was edited is refused, and
nothing is measured. Then the data: it must be what the result was measured on. Then the networks are evaluated again, and timed
where the result's GPU (or processor) is: metrics must be equal, up to a tenth of a point or one sample; the speedup lies within
the record's interval, or it is said that it does not. What is done meanwhile is told on stderr.

  COMMAND results/RUN/row.json
  COMMAND results/RUN/row.json dataset.path=DIR        no path of a record is followed: name yours
  COMMAND results/RUN/row.json --cache-dir DIR         the cache that holds its dense network and its export
  COMMAND row.json --checkpoint DIR pattern=n_m ...    a record without its run's folder
  COMMAND results/RUN/row.json trust=[mylab.patterns]  classes of a package of its author's, whose code runs
  COMMAND results/A/row.json results/B/row.json        several, one after another; the status is the worst
  COMMAND results/RUN/row.json --record-only           digests and what follows from them, nothing is evaluated
  COMMAND experiments/records/STUDY/RUN_ID.record.zip --retrain dataset.path=DIR   a record without weights

--retrain makes the weights again: it trains, prunes, recovers and measures by the overrides that the run recorded, in a cache of
its own (.cache/retrained, or --cache-dir), where a killed one resumes. Each metric must lie within two standard errors of the
record's (of both evaluations together), on the same kind of GPU or on another; the speedup is compared on the same kind alone:
it is repeated where the two intervals overlap.

Digests show that a record was edited. They do not show who made it: who edits a result can also write a new sha256 into
it. Against forging only measuring again helps, and that compares nothing but what can be measured here.

The last line (of each of several rows, after its name) is one of
  verified                         all that could be looked at holds                                         status 0
  verified, not timed here         the same, but for the speedup: this is another device                     status 0
  verified, speedup not repeated   the same, but for the speedup: now it lies outside of its interval        status 0
  differs                          edited, or measuring again gives something else                           status 1
  not evaluated                    with --record-only, or it cannot be verified here, for the reason told    status 2
"""


@ending_with_its_reader()
def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_intermixed_args(arguments)
    more = [
        text for text in options.overrides if "=" not in text and not text.startswith("~")
    ]  # no override is like it
    options.overrides = [text for text in options.overrides if text not in more]
    rows, words = [options.row, *map(Path, more)], set()
    for given in rows:
        row = given / RECORD if given.is_dir() else given
        try:
            if more and options.checkpoint is not None:
                raise InvalidSetting("--checkpoint", options.checkpoint, "is of one row: verify each by itself")
            if options.retrain and (options.checkpoint is not None or options.record_only):
                raise InvalidSetting("--retrain", "", "makes weights again: leave out --checkpoint and --record-only")
            tell(f"reading the record {row} ...")
            with _in_a_folder(row) as file:
                word = _retrain(file, options) if options.retrain else _verify(file, options)
        except InvalidSetting as error:
            word = OTHER if isinstance(error, Edited) else NOT_EVALUATED
            print(f"{'refused' if isinstance(error, Edited) else 'cannot be verified'}: {error}", file=sys.stderr)
        print(printable(f"{row}: {word}") if more else word, flush=True)
        words.add(word)
    return STATUS[next(word for word in STATUS if word in words)]


def _verify(row: Path, options: argparse.Namespace) -> str:
    trust, overrides = _trusted(options.overrides)
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
                words.add(NOT_EVALUATED)  # of a dense result there is nothing else
    return next(word for word in STATUS if word in words)


def _retrain(row: Path, options: argparse.Namespace) -> str:
    trust, overrides = _trusted(options.overrides)
    result = _record(row)
    given = [*places(options.cache_dir, overrides), *overrides]
    with experiment_of(result, row, given, partial(_composed, trust)) as (experiment, configuration):
        _check_configuration(result, row, configuration, experiment.choices, given)
        require_same_training(experiment, result)
        words = {_word(finding) for finding in planned(experiment, result, given)}
    if OTHER in words:
        return OTHER  # what is trained would be something else
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
    """Print a finding; what it makes of the row."""
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
    """The row.json of a packed record, unpacked for as long as it is read; any other file as it is."""
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
    """The copies of the configuration beside the record; defaults of another version of the program may be others.

    Raises:
        Edited: they are not what was run.
    """
    own = [*given, *ON_CPU]
    check_hydra_file(choices, row, own)
    difference = configuration_difference(configuration, row, own)
    if difference is None:
        return
    if result.identity.commit == code_commit():
        raise Edited("config.yaml", f"was edited: {difference}")
    print(printable(f"config.yaml: not verified, {difference}; the result is of another version of the program"))


def _trusted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The packages of `trust=[a,b]`, and the overrides."""
    named = [text.removeprefix(TRUST) for text in arguments if text.startswith(TRUST)]
    packages = [package.strip().strip("'\"") for text in named for package in text.strip("[]").split(",")]
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise InvalidSetting("trust", shortened(package), "names packages: trust=[mylab.patterns]")
    return packages, [text for text in arguments if not text.startswith(TRUST)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_command("verify"),
        description=DESCRIPTION.replace("COMMAND", program_command("verify")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "row", type=Path, help="row.json of a run, the run's folder, or a packed record; more may follow"
    )
    parser.add_argument(
        "overrides", nargs="*", help="Hydra overrides, after those that the run recorded; trust=[PACKAGE]"
    )
    parser.add_argument("--checkpoint", type=Path, help="folder of the exported network (the link in the run's folder)")
    parser.add_argument("--cache-dir", type=Path, help=f"of the stages that are here ({Config().cache_dir})")
    parser.add_argument("--record-only", action="store_true", help="evaluate nothing")
    parser.add_argument("--retrain", action="store_true", help="make the weights again")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
