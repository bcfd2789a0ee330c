"""A row with forged fields or claims is never called verified: each is found, or the last line names what was not seen."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import sparsefront as sf
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.results.field_types import alternatives
from sparsefront.results.record import ENERGY, ResultField, record_digest, result_fields
from sparsefront.stages.latency import timing_fields
from sparsefront.stages.network import weights_digest
from sparsefront.tasks.outcomes import load_outcomes, save_outcomes
from sparsefront.verify import again
from sparsefront.verify.__main__ import main
from sparsefront.verify.compared import topic_of

TINY = ("debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1")
SEALS = ("record_sha256", "schema_version")
FIELDS = {item.name: item for item in result_fields() if item.name not in SEALS}
Content = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("forged")
    places = (f"cache_dir={folder / 'cache'}", f"results_dir={folder / 'results'}")
    run = sf.run(*TINY, *places, "pattern=n_m", "sparsity=0.5", "recipe.epochs=4").folder
    content = json.loads((run / "row.json").read_text())
    samples = {"dense": [[1.0, 1.01, 1.02, 1.03, 1.04]], "sparse": [[2.0, 2.01, 2.02, 2.03, 2.04]]}
    claim_speedup(run, content, samples | {"fused_dense": samples["dense"]})  # no verdict here hangs on a timer
    for place in (run, *(folder / "cache" / "result").iterdir()):
        write(place, content)
    return run


def write(folder: Path, content: Content) -> None:
    content["identity"]["record_sha256"] = record_digest(content)
    (folder / "row.json").write_text(json.dumps(content))


@pytest.fixture(scope="module", params=["cache", "export alone"])
def stored(request, finished, tmp_path_factory) -> str:
    """The cache that the reader has: that of the run, or none, so that the export of the folder is all there is."""
    return str(finished.parents[1] / "cache" if request.param == "cache" else tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module", autouse=True)
def once(finished) -> Iterator[None]:
    """The networks are composed, evaluated and timed once, since no forgery of a record changes them."""
    with pytest.MonkeyPatch.context() as patch:
        measured, composed = again.measure_networks, {}

        @cache
        def measure(cache_dir: Path, timed: bool, weights: str) -> Any:
            return measured(*measure.arguments)

        timed = json.loads((finished / "row.json").read_text())["speed"]

        def measure_once(experiment, net, *more):
            measure.arguments = (experiment, net, *more)  # the dense network is another one where its digest is forged
            results = measure(experiment.cache_dir, experiment.measure.latency, weights_digest(net))
            content, samples, qualities = copy.deepcopy(results)
            if experiment.measure.latency:
                content["speed"] = {name: value for name, value in timed.items() if name in content["speed"]}
            return content, samples, qualities

        @contextmanager
        def compose_once(trust, overrides, compose=again._compose):
            key = tuple(overrides)
            if key not in composed:
                with compose(trust, overrides) as made:
                    composed[key] = made
            yield composed[key]

        patch.setattr(again, "measure_networks", measure_once)
        patch.setattr(again, "_compose", compose_once)
        yield


@pytest.fixture
def verify(finished, stored, tmp_path, capsys) -> Callable[[Callable[[Path, Content], None]], tuple[int, str]]:
    """verify(forge) -> status and last line of the row after `forge(folder, record)`, all digests of the record made to fit."""

    def verified(forge: Callable[[Path, Content], None]) -> tuple[int, str]:
        folder = tmp_path / "run"
        if not folder.exists():  # a test forges fields of the record, or one claim
            shutil.copytree(finished, folder, symlinks=False)
        content = json.loads((finished / "row.json").read_text())
        forge(folder, content)
        write(folder, content)
        status = main([str(folder), "--cache-dir", stored])
        lines = capsys.readouterr().out.splitlines()
        print(*(line for line in lines if ": holds" not in line), sep="\n")  # for who reads a failure
        return status, lines[-1]

    return verified


def nulls(content: Content) -> Iterator[tuple[str, Any]]:
    for name, item in FIELDS.items():
        value = content[item.group][name]
        if value is not None and name not in ENERGY:  # older records lack these
            yield name, type(value)() if isinstance(value, dict | list) and value else None


def other_values(content: Content) -> Iterator[tuple[str, Any]]:
    """Another value of each field that states one, and one of each that does not."""
    for name, item in FIELDS.items():
        value = content[item.group][name]
        kinds = alternatives(item.hint)
        invented = {str: "NVIDIA H200", float: 0.5, int: 7, dict: {"blocks.0.attn.q": 0.25}, list: []}
        if value in (None, {}, []):
            yield name, next(invented[kind] for kind in kinds if kind in invented)
        else:
            yield name, changed(value)


def changed(value: Any) -> Any:
    """Numbers by more than timings differ by themselves."""
    if isinstance(value, dict):
        first = next(iter(value))
        return value | {first: changed(value[first])}
    if isinstance(value, list):
        return value[1:]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) or value == 0 else value * 0.07
    return "other" if value is None else f"{value}0"


def test_forged_fields_are_not_verified(verify, finished, stored):
    content, has_cache = json.loads((finished / "row.json").read_text()), "cache" in stored
    for forged in (nulls, other_values) if has_cache else (other_values,):
        unnamed, topics = {}, {}
        for name, value in forged(content):
            item = FIELDS[name]
            if value == content[item.group][name]:
                continue
            status, line = verify(partial(set_field, item, value))
            if status == 0 or (status == 3 and topic_of(item) not in line.partition("not verified: ")[2].split(", ")):
                unnamed[name] = (value, line)
            elif status == 3:
                topics[name] = (value, line)
        assert unnamed == {}
        assert not has_cache or len(topics) <= (0 if forged is nulls else 10), topics


def set_field(item: ResultField, value: Any, folder: Path, content: Content) -> None:
    content[item.group][item.name] = value


def lower_dense(folder: Path, content: Content) -> None:
    outcomes = load_outcomes(folder / "outcomes.npz")
    values = outcomes["dense"].values.copy()
    values[np.flatnonzero(values)[:6]] = 0
    outcomes["dense"] = replace(outcomes["dense"], values=values)
    save_outcomes(folder / "outcomes.npz", outcomes)
    content["quality"]["dense"] = outcomes["dense"].metric_over(np.arange(len(values)))
    content["identity"]["outcomes_sha256"] = file_digest(folder / "outcomes.npz")


def claim_speedup(folder: Path, content: Content, samples: dict[str, list[list[float]]]) -> None:
    (folder / "samples.json").write_text(json.dumps(samples))
    speed = content["speed"]
    speed |= timing_fields(samples, speed["batch_size"], fused=True)
    content["identity"]["samples_sha256"] = file_digest(folder / "samples.json")


def widen_interval(folder: Path, content: Content) -> None:
    samples = json.loads((folder / "samples.json").read_text())
    claim_speedup(folder, content, samples | {"dense": [[0.01, 0.01, 1.0, 100.0, 100.0]], "sparse": [[1.0] * 5]})


def claim_35(folder: Path, content: Content) -> None:
    samples = json.loads((folder / "samples.json").read_text())
    claim_speedup(folder, content, samples | {"dense": [[35.0] * 5], "sparse": [[1.0] * 5]})
    (folder / "samples.json").unlink()


def invent(side: str) -> Callable[[Path, Content], None]:
    def forge(folder: Path, content: Content) -> None:
        content["quality"] |= {side: 0.01, f"{side}_standard_error": 0.01, f"val_{side}": 0.01}
        content["quality"][f"val_{side}_standard_error"] = 0.01
        if side == "dense_low":
            content["speed"]["dense_low_precision"] = "fp8"
        else:
            content["identity"][f"{side}_weights_sha256"] = "0" * 64
            content["choice"]["control"] = side
            add_overrides(folder, f"control={side}")

    return forge


def add_overrides(folder: Path, *overrides: str) -> None:
    file = folder / ".hydra" / "overrides.yaml"
    file.write_text(yaml.safe_dump([*yaml.safe_load(file.read_text()), *overrides]))
    for name in ("config.yaml", "hydra.yaml"):
        (folder / ".hydra" / name).unlink()


def pose_as_seed(folder: Path, content: Content) -> None:
    content["identity"] |= {"seed": 5, "recovery_seed": 5}
    add_overrides(folder, "seed=5")


def pose_as_h200(folder: Path, content: Content) -> None:
    content["identity"] |= {"gpu": "NVIDIA H200", "processor": None, "threads": None, "cuda": "13.2", "driver": "580.1"}
    content["speed"]["latency_device"] = "cuda"


CLAIMS = {
    "dense lowered": lower_dense,
    "an interval of 0.01 to 10": widen_interval,
    "35 times, without samples": claim_35,
    "a rival in low precision": invent("dense_low"),
    "a distilled rival": invent("dense_distilled"),
    "another seed": pose_as_seed,
    "another device": pose_as_h200,
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_forged_claim_is_not_verified(verify, claim):
    status, line = verify(CLAIMS[claim])
    print(claim, status, line)
    assert status in (1, 2, 3)


def test_honest_row_is_verified(verify, stored):
    status, line = verify(lambda folder, content: None)
    if "cache" in stored:
        assert (status, line) == (0, "verified")
    else:
        assert status == 3 and line.endswith("; not verified: seconds, seed, dense")
