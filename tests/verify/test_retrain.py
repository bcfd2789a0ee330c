"""Weights that nobody kept are made again from a record, and what comes out is held against what it states."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sparsefront as sf
from sparsefront.records import members_of
from sparsefront.results.packed import OUTCOMES, OVERRIDES, RECORD, SAMPLES, pack
from sparsefront.results.record import Result, record_digest
from sparsefront.verify import rows
from sparsefront.verify.__main__ import main
from sparsefront.verify.compared import DIFFERS, HOLDS, Comparison

TINY = ("debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1")
PLAIN = ("report.html=false", "report.plot=false", "pattern=n_m", "sparsity=0.5", "control=dense_continued")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a run on the digits."""
    folder = tmp_path_factory.mktemp("retrain")
    return sf.run(*TINY, *PLAIN, f"cache_dir={folder / 'cache'}", f"results_dir={folder / 'results'}").folder


@pytest.fixture(autouse=True)
def _place(finished, monkeypatch):
    """One working directory, in whose .cache/ the first test trains again: the others find that finished."""
    monkeypatch.chdir(finished.parents[1])


@pytest.fixture
def record(finished, tmp_path) -> Callable[..., str]:
    """record(group={field: value}) -> a packed record that states something else, all digests and no other file to tell it."""

    def packed(overrides: tuple[str, ...] = (), without: tuple[str, ...] = (OUTCOMES, SAMPLES), **edits: dict) -> str:
        members = members_of(finished)
        content = json.loads(members[RECORD])
        for group, values in edits.items():
            content[group] |= values
        content["identity"]["record_sha256"] = record_digest(content)
        members[RECORD] = json.dumps(content).encode()
        members[OVERRIDES] += "".join(f"- {text}\n" for text in overrides).encode()
        file = tmp_path / "run.record.zip"
        file.write_bytes(pack({name: held for name, held in members.items() if name not in (without if edits else ())}))
        return str(file)

    return packed


@pytest.fixture
def untrained(monkeypatch):
    monkeypatch.setattr(rows, "run_overrides", lambda *given: pytest.fail("it trains"))


def refused(record: str, capsys, *given: str) -> str:
    """The line that says why, which is all that is said."""
    assert main([record, "--retrain", *given]) == 2
    found = capsys.readouterr()
    assert found.out.endswith("not evaluated\n")
    (line,) = [line for line in found.err.splitlines() if not line.endswith(" ...")]
    return line.removeprefix("cannot be verified: ")


def test_record_is_made_again(record, finished, capsys, monkeypatch):
    """When it ran, and how the program was called then, only the run itself could tell."""
    assert main([record(), "--retrain"]) == 3
    said = capsys.readouterr()
    assert "training again ..." in said.err and "trained again: " in said.out
    assert "seconds, environment: the record's word, since .cache/sparsefront does not have the result" in said.out
    for topic in ("accuracy", "dense", "control", "training", "seed", "weights"):
        assert f"{topic}: holds, " in said.out
    unseen = said.out.splitlines()[-1].partition("; not verified: ")[2].split(", ")
    assert set(unseen) <= {"environment", "seconds", "latency", "kernels"}, "no verdict hangs on a timer"
    assert (Path(".cache") / "retrained" / "cache" / "dense").is_dir(), "in a cache of its own"
    assert main([str(finished), "--retrain"]) == 3, "a run's folder, too; what is finished is not repeated"
    assert "it was trained again before, and measured 20" in capsys.readouterr().err
    shutil.copytree("cache/result", ".cache/sparsefront/result")
    monkeypatch.setattr(Comparison, "own_noise", math.inf)
    assert main([record(), "--retrain"]) == 0, "the run's own result tells the rest"
    shutil.rmtree(".cache/sparsefront")


EDITED = {
    "on the held-out part": ("accuracy: DIFFERS, val_masked is 0.99 in the record, ", {"val_masked": 0.99}),
    "of the sparse network": ("accuracy: DIFFERS, sparse is 0.99 in the record, ", {"sparse": 0.99}),
    "of the control": ("control: DIFFERS, dense_continued is 0.99 in the record, ", {"dense_continued": 0.99}),
    "with an error that excuses it": (
        "masked_standard_error is 0.9 in the record, ",
        {"masked": 0.99, "masked_standard_error": 0.9},
    ),
    "of other samples": ("accuracy: DIFFERS, evaluated_samples is 7 in the record, 32 now", {"evaluated_samples": 7}),
}


@pytest.mark.parametrize(("message", "quality"), EDITED.values(), ids=EDITED)
def test_edited_metric_differs(record, capsys, message, quality):
    assert main([record(quality=quality), "--retrain"]) == 1
    said = capsys.readouterr().out
    assert message in said and said.endswith("\ndiffers\n")


def test_metric_within_its_error(record, finished, capsys):
    quality = json.loads((finished / RECORD).read_text())["quality"]
    near = quality["val_masked"] + 1.5 * quality["val_masked_standard_error"]
    assert main([record(quality={"val_masked": near}), "--retrain"]) == 3, capsys.readouterr().out


@pytest.mark.parametrize(("commit", "verdict"), [("a" * 40, DIFFERS), ("a" * 40 + "-dirty", HOLDS), ("b" * 40, HOLDS)])
def test_checkpoint_of_another_commit_holds(finished, commit, verdict):
    """Its name has the digest of the code; of equal code it is a claim that another training refutes."""
    now = Result.from_json((finished / RECORD).read_text()).with_values({"commit": "a" * 40})
    stated = now.with_values({"commit": commit, "checkpoint": "export/0123456789abcdef"})
    (finding,) = Comparison(stated, now, retrained=True).findings({"checkpoint"})
    assert finding.verdict == verdict


def test_digests_are_checked_before(record, finished, capsys, untrained):
    assert main([record(quality={"sparse": 0.99}, without=()), "--retrain"]) == 1
    assert "refused: record: was edited: it states sparse=0.99, where outcomes.npz" in capsys.readouterr().err
    members = members_of(finished)
    Path("edited.record.zip").write_bytes(pack(members | {RECORD: members[RECORD].replace(b'"seed": 0', b'"seed": 1')}))
    assert main(["edited.record.zip", "--retrain"]) == 1
    assert "refused: record: was edited after it was stored" in capsys.readouterr().err


def test_other_initial_weights_differ(record, capsys, untrained):
    assert main([record(identity={"initial_weights": {"sha256": {"model.safetensors": "ab"}}}), "--retrain"]) == 1
    said = capsys.readouterr().out
    assert re.search("training: DIFFERS, .*initial_weights.sha256 is {'model.safe.* in the record, ", said)
    assert said.endswith("\ndiffers\n") and "accuracy" not in said


def test_another_device(record, capsys):
    assert main([record(identity={"processor": "an Abacus"}), "--retrain"]) == 3
    said = capsys.readouterr().out
    assert "latency: not verified, " in said and "accuracy: holds" in said and "samples: not verified" in said


def test_speedup_within_the_noise(record, capsys):
    """An interval of the record excuses nothing."""
    assert main([record(speed={"speedup": 5e5, "speedup_low": 1e-6, "speedup_high": 6e5}), "--retrain"]) == 3
    said = capsys.readouterr().out
    assert (
        "speedup is 500000.0 in the record, " in said
        and "latency" in said.splitlines()[-1].partition("; not verified: ")[2]
    )


def test_data_that_is_not_here(record, tmp_path, capsys, untrained):
    asked = "dataset.path=glue: is a path of the run's own machine, and no path of a record is followed: add "
    assert asked in refused(record(overrides=("dataset.path=glue",)), capsys)
    line = refused(record(), capsys, "dataset=cifar10", f"dataset.path={tmp_path / 'nowhere'}")
    assert line.startswith(f"dataset.path={tmp_path / 'nowhere'}: ")
    line = refused(record(identity={"dataset_digest": "0" * 16}), capsys)
    assert line.startswith(
        "data: is not what the result was measured on: dataset_digest is 0000000000000000 in the record"
    )


def test_another_training_is_refused(record, capsys, untrained):
    line = refused(record(), capsys, "trainer.limit_batches=1")
    assert line.startswith("trainer.limit_batches=1: is 2 in the record, and another training gives other weights")
    assert refused(record(), capsys, "sparsity=0.25").startswith("sparsity=0.25: is 0.5 in the record")
    assert main([record(cost={"recovery_steps": 7}), "--retrain"]) == 1
    assert "training: DIFFERS, recovery_steps is 7 in the record, 2 now" in capsys.readouterr().out


def test_training_of_another_device(record, finished, capsys):
    trainer = json.loads((finished / RECORD).read_text())["choice"]["trainer_parameters"]
    on_gpu = trainer | {"device": "cuda", "precision": "bf16-mixed", "deterministic": True}
    assert main([record(choice={"trainer_parameters": on_gpu}), "--retrain"]) == 3, capsys.readouterr().err
    capsys.readouterr()
    line = refused(record(choice={"trainer_parameters": trainer | {"precision": "bf16-mixed"}}), capsys)
    assert line.startswith("trainer.precision=32-true: is bf16-mixed in the record, and another training")


def test_cache_of_the_run_trains_nothing(record, finished, capsys):
    cache = finished.parents[1] / "cache"
    assert main([record(), "--retrain", "--cache-dir", str(cache)]) == 2
    told = (
        f"cannot be verified: cache_dir={cache}: holds this run, so that nothing was trained: name another --cache-dir"
    )
    assert capsys.readouterr().err.splitlines()[-1] == told


def test_packed_record_is_verified(record, finished, capsys):
    assert main([record(), "--cache-dir", str(finished.parents[1] / "cache")]) in (0, 3)
    said = capsys.readouterr().out
    assert "masks and weights: hold, in " in said and "accuracy: holds, masked" in said
    assert main([record()]) == 2
    assert re.search("name the exported network with --checkpoint, .* with --retrain", capsys.readouterr().err)
