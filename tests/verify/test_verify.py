"""A stored result is refused where it was edited, in whatever part; measured again it is the same, or it is said."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_files import write_cifar, write_pairs
from tiny_translators import make_translator

import sparsefront as sf
from sparsefront.artifacts.content_digest import checksums, digest, file_digest
from sparsefront.pruning.mask_spec import load_masks, save_masks
from sparsefront.results.record import SCHEMA_VERSION, record_digest
from sparsefront.tasks.outcomes import load_outcomes, save_outcomes
from sparsefront.verify import again
from sparsefront.verify.__main__ import main

SEEN = (0, 3)  # verified, where latencies are repeated; no test hangs on a timer


@pytest.fixture
def cache(finished: Path) -> list[str]:
    """The cache that holds the dense network of the run: no path of a record is followed."""
    return ["--cache-dir", str(finished.parents[1] / "cache")]


@pytest.fixture
def row(copied: Path) -> Path:
    return copied / "row.json"


def edit(row: Path, group: str, name: str, value: object, *, forge: bool = False) -> None:
    """Another value of one field; a forger makes the digest fit."""
    content = json.loads(row.read_text())
    content[group][name] = value
    if forge:
        content["identity"]["record_sha256"] = record_digest(content)
    row.write_text(json.dumps(content))


def field(group: str, name: str, value: object, *, forge: bool = True) -> Callable[[Path], None]:
    return lambda row: edit(row, group, name, value, forge=forge)


def text(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Another text in a file beside the row."""

    def change(row: Path) -> None:
        content = (row.parent / name).read_text()
        assert old in content
        (row.parent / name).write_text(content.replace(old, new, 1))

    return change


def samples(content: str) -> Callable[[Path], None]:
    def change(row: Path) -> None:
        (row.parent / "samples.json").write_text(content)
        forge_file(row, "samples.json", "samples_sha256")

    return change


DIGEST, CONFIG = "refused: record: was edited", ".hydra/config.yaml"
BOMB = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 10}]\n" for n in range(1, 9))
# what is changed -> status and message; test_forged_rows.py forges every field
FORGERIES: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "a metric": (field("quality", "sparse", 0.99, forge=False), 1, DIGEST),
    "layers": (field("sparsity", "sparsity_per_layer", {}, forge=False), 1, DIGEST),
    "taken away": (field("quality", "sparse_standard_error", None, forge=False), 1, DIGEST),
    "digest of the record": (field("identity", "record_sha256", "0" * 64, forge=False), 1, DIGEST),
    "no digest": (field("identity", "record_sha256", None, forge=False), 2, "holds no record_sha256"),
    "stated twice": (text("row.json", '"sparse":', '"sparse": 0.9999, "sparse":'), 1, "it states sparse twice"),
    "no checkpoint": (
        field("identity", "checkpoint", None),
        1,
        f"{DIGEST}: checkpoint is null, and pattern=n_m prunes",
    ),
    "/etc": (field("identity", "checkpoint", "/etc"), 1, f"{DIGEST}: checkpoint is"),
    "a folder above": (field("identity", "checkpoint", "export/../../x"), 1, f"{DIGEST}: checkpoint is"),
    "another stage": (field("identity", "checkpoint", "result/0123456789abcdef"), 1, f"{DIGEST}: checkpoint is"),
    "recovery seed": (
        field("identity", "recovery_seed", 5),
        2,
        "cannot be verified: recovery_seed=0: is 5 in the record",
    ),
    "achieved": (field("sparsity", "sparsity_achieved", 0.9), 1, "sparsity: DIFFERS, sparsity_achieved is 0.9 in the"),
    "a latency": (field("speed", "latency_sparse_ms", 1e-3), 1, "latency_sparse_ms=0.001, where samples.json gives"),
    "samples": (field("quality", "evaluated_samples", 10**4), 1, "evaluated_samples=10000, where outcomes.npz gives"),
    "a list": (samples("[]"), 1, "refused: .*was edited"),
    "a number": (samples('{"dense": 3}'), 1, "refused: .*was edited"),
    "an empty list": (samples('{"dense": [[]], "sparse": [[1]]}'), 1, "refused: .*was edited"),
    "a text": (samples('{"dense": [["x"]]}'), 1, "refused: .*was edited"),
    "a setting": (
        text(CONFIG, "lr: ", "lr: 1.0 # "),
        1,
        "refused: .*config.yaml: was edited: .*lr is 1.0 in it, where",
    ),
    "an interpolation": (text(CONFIG, "${seed}", "7"), 1, "config.yaml: was edited: recovery.seed is 7 in it, where"),
    "a class": (text(CONFIG, "n_m.NM", "os.system"), 1, "config.yaml: was edited: pattern._target_ is sparse.*system"),
    "a key": (text(CONFIG, "sparsity:", "more: 1\nsparsity:"), 1, "config.yaml: was edited: more is 1 in it, where"),
    "bytes of YAML": (text(CONFIG, "sparsity", "\x00"), 1, "config.yaml: cannot be read: not YAML"),
    "aliases": (text(CONFIG, "sparsity:", f"{BOMB}sparsity:"), 1, "config.yaml: cannot be read: stands for more than"),
    "overrides": (text(".hydra/overrides.yaml", "- ", "{ "), 2, "in the record: add the run's own overrides to the"),
}


@pytest.mark.parametrize(("forge", "status", "said"), FORGERIES.values(), ids=FORGERIES)
def test_forgery_is_told(row, cache, capsys, forge, status, said):
    forge(row)
    assert main([str(row), *cache]) == status
    told = capsys.readouterr()
    assert re.search(said, told.out + told.err)
    assert told.out.endswith("differs\n" if status == 1 else "not evaluated\n")
    assert said != DIGEST or told.out == "differs\n", "nothing is measured"


def edit_tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file.with_suffix(".new"), metadata={"format": "pt"})
    file.with_suffix(".new").replace(file)


def test_stored_result_is_verified(row, cache, capsys):
    assert main([str(row), *cache]) in (0, 3)
    said = capsys.readouterr().out
    for topic in ("accuracy", "sparsity", "kernels", "seed", "seconds", "training"):
        assert f"{topic}: holds" in said
    unverified = said.splitlines()[-1].partition("not verified: ")[2]
    assert set(filter(None, unverified.split(", "))) <= {"latency", "dense"}, "timers repeat or do not"


@pytest.mark.parametrize("name", ["samples.json", "outcomes.npz"])
def test_edited_files_are_refused(row, capsys, name):
    file = row.parent / name
    whole = file.read_bytes()
    file.unlink()
    file.symlink_to("/proc/self/mem")  # cannot be read
    assert main([str(row)]) == 2
    assert re.search(f"cannot be verified: row=.*{name}: cannot be read \\(", capsys.readouterr().err)
    file.unlink()
    file.write_bytes(whole)
    file.write_bytes(file.read_bytes() + b" ")
    assert main([str(row)]) == 1
    assert f"refused: {name}: was edited" in capsys.readouterr().err


def flip_mask(folder: Path) -> None:
    masks = load_masks(folder / "masks.safetensors")
    first = next(iter(masks.values())).view(-1)
    first[0] = ~first[0]
    save_masks(masks, folder / "masks.safetensors")


def name_of(tensors: dict[str, torch.Tensor], *, pruned: bool) -> str:
    return next(name for name, tensor in tensors.items() if tensor.ndim == 2 and (tensor == 0).any() == pruned)


def larger_weight(tensors: dict[str, torch.Tensor]) -> None:
    kept = tensors[name_of(tensors, pruned=True)].view(-1)
    kept[kept.nonzero()[0]] *= 1.001


def state(folder: Path, value: object, *keys: str) -> None:
    """Another value in the manifest; None among the keys: the first that is there."""
    file = folder / "manifest.json"
    content = held = json.loads(file.read_text())
    *parents, last = keys
    for key in parents:
        held = held[key or next(iter(held))]
    held[last or next(iter(held))] = value
    file.write_text(json.dumps(content))


def broken_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nothing")


def layer_sparsity(folder: Path, value: float | None) -> None:
    """Another one for the first layer; None: none."""
    file = folder / "layer_sparsities.json"
    stated = json.loads(file.read_text())
    first = next(iter(stated))
    stated = {
        name: value if name == first else own for name, own in stated.items() if name != first or value is not None
    }
    file.write_text(json.dumps(stated))


def reseal(folder: Path) -> None:
    """The checksums that the cache keeps beside an export, of what is there now."""
    file = folder / "determined_by.json"
    content = json.loads(file.read_text())
    file.unlink()
    content = {name: value for name, value in content.items() if name != "digest"} | {"files": checksums(folder)}
    file.write_text(json.dumps(content | {"digest": digest(content)}))


EDITED_NETWORKS = {
    "a mask": ("masks: are not those", flip_mask),
    "a weight": ("weights: are not those", lambda folder: edit_tensors(folder / "model.safetensors", larger_weight)),
    "what kernels read": (
        "compressed weights of .*: are not its weights",
        lambda folder: edit_tensors(
            folder / "compressed.safetensors",
            lambda found: next(part for name, part in found.items() if name.endswith(".values")).mul_(1.01),
        ),
    ),
    "a file": ("cannot be read", broken_file),
    "its manifest": ("cannot be read", lambda folder: (folder / "manifest.json").write_text("{")),
    "its pattern": ("its pattern is 'tile_wise', where 'n_m'", lambda at: state(at, "tile_wise", "pattern")),
    "the class of its pattern": (
        "its pattern_class is 'os.Other', where",
        lambda at: state(at, "os.Other", "pattern_class"),
    ),
    "a shape": (r"its layers.*shape.0 is 8, where 64", lambda at: state(at, [8, 8], "layers", None, "shape")),
    "why a layer is dense": (
        "its dense_layers.no such layer is 'too small', where None",
        lambda at: state(at, "too small", "dense_layers", "no such layer"),
    ),
    "the version of its format": ("its format_version is 2, where 3", lambda at: state(at, 2, "format_version")),
    "a setting that no pattern has": (
        "its pattern_parameters.seed is 1, where None",
        lambda at: state(at, 1, "pattern_parameters", "seed"),
    ),
    "how a layer is stored": (
        r"layers.*parameters.n is 1, where 2",
        lambda at: state(at, {"n": 1, "m": 2}, "layers", None, "parameters"),
    ),
    "a sparsity of its layout": (
        "layer_sparsities.json: was edited: the mask of blocks.0.attn.q has another sparsity",
        lambda at: layer_sparsity(at, 0.25),
    ),
    "a layer of its layout": ("layer_sparsities.json: was edited: it has no", lambda at: layer_sparsity(at, None)),
}


@pytest.mark.parametrize(("message", "change"), EDITED_NETWORKS.values(), ids=EDITED_NETWORKS)
def test_edited_networks_are_refused(row, capsys, message, change):
    """Also where the checksums of the files are written anew; without, they are what tells."""
    change(row.parent / "checkpoint")
    assert main([str(row), "--record-only"]) == 1
    reseal(row.parent / "checkpoint")
    assert main([str(row)]) == 1
    found = capsys.readouterr()
    assert re.search(f"refused: .*{message}", found.err) and found.out.endswith("differs\n")


@pytest.mark.parametrize("name", ["layer_sparsities.json", "permutations.safetensors", "determined_by.json"])
def test_files_without_a_digest(row, capsys, name):
    file = row.parent / "checkpoint" / name
    file.write_bytes(file.read_bytes().replace(b"0.5", b"0.4") + b" ")
    if name == "determined_by.json":
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"determined_by": content["determined_by"] | {"code": "0"}}))
    assert main([str(row), "--record-only"]) == 1
    assert re.search(f"refused: .*({name} has|{name}: was edited|{name} cannot be read)", capsys.readouterr().err)
    file.unlink()
    assert main([str(row), "--record-only"]) == 1


def test_moved_run_needs_its_cache(row, cache, capsys, monkeypatch):
    """Not in the one that its configuration names: no path of a record is followed."""
    monkeypatch.chdir(row.parent)
    shutil.rmtree(row.parent / "checkpoint")
    assert main([str(row), "--record-only"]) == 2
    found = capsys.readouterr()
    assert "name the exported network with --checkpoint, or the cache that has it with --cache-dir" in found.err
    assert main([str(row), "--record-only", *cache]) == 2
    assert "masks and weights: hold" in (said := capsys.readouterr().out) and said.endswith("not evaluated\n")


def test_control_is_measured_again(tiny, finished, tmp_path, capsys):
    """Points lost are against it: a forged one would make any pattern look good."""
    cache = finished.parents[1] / "cache"
    asked = ("pattern=n_m", "sparsity=0.5", "recipe.epochs=4", "control=dense_continued", "dataset.valid_fraction=0.1")
    folder = sf.run(*tiny, f"cache_dir={cache}", f"results_dir={tmp_path}", *asked).folder
    stored = ["--cache-dir", str(cache)]
    assert main([str(folder), *stored]) in SEEN
    assert "control: holds, dense_continued " in capsys.readouterr().out
    edit(folder / "row.json", "quality", "dense_continued", 0.01, forge=True)
    assert main([str(folder), *stored]) == 1
    assert "it states dense_continued=0.01, where outcomes.npz gives" in capsys.readouterr().err
    (folder / "outcomes.npz").unlink()
    assert main([str(folder), *stored]) == 1
    assert "control: DIFFERS, dense_continued is 0.01 in the record" in capsys.readouterr().out
    edit(folder / "row.json", "identity", "dense_continued_weights_sha256", "0" * 64, forge=True)
    assert main([str(folder), *stored]) == 3
    said = capsys.readouterr().out
    assert "dense_continued_weights_sha256=00" in said and "--retrain settles it" in said


def test_forged_metric(row, capsys):
    edit(row, "quality", "sparse", 1.0, forge=True)
    assert main([str(row), "--record-only"]) == 1
    assert "it states sparse=1.0, where outcomes.npz gives" in capsys.readouterr().err
    (row.parent / "outcomes.npz").unlink()
    assert main([str(row), "--record-only"]) == 2, "its digest holds"
    capsys.readouterr()
    assert main([str(row)]) == 1
    said = capsys.readouterr().out
    assert "accuracy: DIFFERS, sparse is 1.0 in the record" in said and said.endswith("\ndiffers\n")


def test_verify_without_the_gpu(row, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for group, name, value in (
        ("identity", "gpu", "NVIDIA H200"),
        ("identity", "processor", None),
        ("identity", "threads", None),
        ("identity", "gpu", "NVIDIA H200"),
    ):
        edit(row, group, name, value, forge=True)
    assert main([str(row)]) == 3
    said = capsys.readouterr().out
    assert "latency: not verified, " in said and "accuracy: holds" in said
    last = said.splitlines()[-1]
    assert last.startswith("verified: data, ") and {"latency", "kernels"} <= set(
        last.partition("not verified: ")[2].split(", ")
    )


@pytest.mark.parametrize(("more", "timed"), [(0, True), (1, False)])
def test_threads_of_the_row(row, capsys, more, timed):
    edit(row, "identity", "threads", os.cpu_count() + more, forge=True)
    before = torch.get_num_threads()
    assert main([str(row)]) in (1, 3) and torch.get_num_threads() == before
    found = capsys.readouterr()
    assert ("timing dense and sparse" in found.err) == timed and ("latency_dense_ms=" in found.out) != timed


def test_speedup_that_is_not_repeated(row, cache, capsys, monkeypatch):
    """It cannot be forged alone: it follows from the samples. So the timing here is another one."""
    monkeypatch.setattr(again, "measure_networks", slower(again.measure_networks))
    assert main([str(row), *cache]) == 3
    said = capsys.readouterr().out
    assert "latency: not verified, " in said and ": not repeated" in said and "DIFFERS" not in said
    assert said.endswith("; not verified: latency\n")
    edit(row, "speed", "speedup_low", 50.0, forge=True)
    assert main([str(row)]) == 1
    assert "refused: record: was edited: it states speedup_low=50.0, where samples.json" in capsys.readouterr().err


def slower(measure_networks: Callable) -> Callable:
    def measured(*arguments):
        content, samples, qualities = measure_networks(*arguments)
        content["speed"]["speedup"] /= 100
        return content, samples, qualities

    return measured


def forge_file(row: Path, name: str, field: str) -> None:
    content = json.loads(row.read_text())
    content["identity"][field] = file_digest(row.parent / name)
    content["identity"]["record_sha256"] = record_digest(content)
    row.write_text(json.dumps(content))


def test_forged_outcomes_of_same_mean(row, capsys):
    found = load_outcomes(row.parent / "outcomes.npz")
    for side, outcomes in found.items():
        shifted = [np.roll(outcomes.values, by) for by in range(1, len(outcomes))]
        values = max(shifted, key=lambda values: (values != outcomes.values).sum())
        found[side] = replace(outcomes, values=values)
    save_outcomes(row.parent / "outcomes.npz", found)
    forge_file(row, "outcomes.npz", "outcomes_sha256")
    assert main([str(row)]) == 1
    assert re.search(r"accuracy: DIFFERS, \d+ of \d+ samples of sparse differ from", capsys.readouterr().out)


def test_stored_command_line_is_compared(row, capsys):
    file = row.parent / ".hydra" / "hydra.yaml"
    for content, said in (
        ({"overrides": {"task": ["pattern=tile_wise"]}}, "overrides.task is not what overrides.yaml holds"),
        ({"runtime": {"choices": {"pattern": "tile_wise"}}}, "it chose pattern=tile_wise, where n_m was run"),
        ({"runtime": {"choices": [1]}, "overrides": 3}, None),
    ):
        file.write_text(yaml.safe_dump({"hydra": content}))
        assert main([str(row)]) == (1 if said else 3)
        assert said is None or f"refused: .hydra/hydra.yaml: was edited: {said}" in capsys.readouterr().err.replace(
            "its ", ""
        )


def test_setting_that_came_later(row, capsys):
    edit(row, "identity", "migrated_from", SCHEMA_VERSION - 1)
    stated = json.loads(row.read_text())["choice"]["recovery_parameters"]
    del stated["backend"]
    edit(row, "choice", "recovery_parameters", stated, forge=True)
    assert main([str(row)]) == 3
    assert (
        "choice: not verified, recovery_parameters.backend is None" in (said := capsys.readouterr().out)
        and "DIFFERS" not in said
    )


def test_rewinding_record_keeps_its_default(tiny, finished, tmp_path, capsys):
    """`recovery.epochs` was null once where none was set."""
    cache = finished.parents[1] / "cache"
    rewinds = ("pattern=n_m", "sparsity=0.5", "recipe.epochs=4", "recipe.recovery_epochs=2", "recovery=lr_rewind")
    null = "recovery.epochs=null"
    folder = sf.run(*tiny, f"cache_dir={cache}", f"results_dir={tmp_path}", *rewinds, null).folder
    text(".hydra/overrides.yaml", f"- {null}\n", "")(folder / "row.json")
    assert main([str(folder), "--cache-dir", str(cache)]) in SEEN, capsys.readouterr()


def test_own_options_where_named(tiny, finished, tmp_path, capsys):
    own = tmp_path / "conf of mine"
    (own / "pattern").mkdir(parents=True)
    (own / "pattern" / "twos.yaml").write_text("_target_: sparsefront.patterns.n_m.NM\nm: 4\n")
    places = (f"cache_dir={finished.parents[1] / 'cache'}", f"results_dir={tmp_path / 'results'}")
    search = f"hydra.searchpath=['file://{own}']"
    folder = sf.run(*tiny, *places, search, "pattern=twos", "sparsity=0.5", "recipe.epochs=4").folder
    assert main([str(folder)]) == 2
    told = "cannot be verified: pattern=twos: (recorded in .hydra/overrides.yaml) pattern has no such option here; there are "
    assert told in (said := capsys.readouterr().err) and "is found with hydra.searchpath=[file://DIR]" in said
    moved = own.rename(tmp_path / "elsewhere")
    assert main([str(folder), f"hydra.searchpath=[file://{moved}]"]) == 3, capsys.readouterr().err


def test_other_data(tiny, tmp_path, capsys):
    places = (f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}")
    data, same = write_cifar(tmp_path / "data"), write_cifar(tmp_path / "moved")
    folder = sf.run(*tiny, *places, "pattern=dense", "dataset=cifar10", f"dataset.path={data}").folder
    places = places[:1]
    assert main([str(folder), *places]) == 2
    asked = f"cannot be verified: dataset.path={data}: is a path of the run's own machine, and no path of a record is"
    assert asked in capsys.readouterr().err
    assert main([str(folder), f"dataset.path={same}", *places]) in SEEN, capsys.readouterr().err
    assert "data: holds, dataset_digest" in capsys.readouterr().out
    more = write_cifar(tmp_path / "more", train=60)
    assert main([str(folder), f"dataset.path={more}", *places]) == 2, "its test part is the same"
    found = capsys.readouterr()
    assert "cannot be verified: data: is not what the result was measured on" in found.err
    assert "accuracy" not in found.out and found.out.endswith("not evaluated\n")


def test_record_alone_needs_its_overrides(tiny, row, tmp_path, capsys):
    alone = tmp_path / "row.json"
    shutil.copy(row, alone)
    assert main([str(alone)]) == 2
    assert "name the exported network with --checkpoint" in capsys.readouterr().err
    network = ["--checkpoint", str(row.parent / "checkpoint")]
    settings = [*tiny, "pattern=n_m", "sparsity=0.5", "recipe.epochs=4", f"cache_dir={tmp_path / 'cache'}"]
    assert main([str(alone), *network]) == 2, "of the default settings"
    assert main([str(alone), *network, *settings]) == 3
    said = capsys.readouterr().out
    assert "dense_weights_sha256=" in said and "samples" in said.splitlines()[-1].partition("; not verified: ")[
        2
    ].split(", ")


def test_low_precision_is_measured_again(tiny, finished, tmp_path, capsys):
    cache, chosen = finished.parents[1] / "cache", ("pattern=n_m", "sparsity=0.5", "precision=int8", "recipe.epochs=4")
    folder = sf.run(*tiny, f"cache_dir={cache}", f"results_dir={tmp_path}", *chosen).folder
    stored = ["--cache-dir", str(cache)]
    assert main([str(folder), *stored]) in SEEN, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "DIFFERS" not in said and all(f" {side} " in said for side in ("dense", "dense_low", "sparse"))
    edit(folder / "row.json", "quality", "dense_low", 0.01, forge=True)
    assert main([str(folder), *stored]) == 1
    edit(folder / "row.json", "speed", "latency_dense_low_ms", 0.1, forge=True)
    assert main([str(folder), *stored]) == 1
    assert "it states latency_dense_low_ms=0.1, where samples.json gives None" in capsys.readouterr().err


PARTS = "dense,prune,recover,export,measure,report"
WITHOUT_SWAP = ("pattern=n_m", "sparsity=0.5", f"stages=[{PARTS}]")
EQUAL_RECIPE = ["recipe=default", "recipe.batch_size=64", "recipe.weight_decay=0.05", "recipe.decay=cosine"]
FOUND = {
    "a kernel that is not swapped in, workers, an equal recipe": (
        WITHOUT_SWAP,
        ["kernel=none", "dataset.num_workers=1", *EQUAL_RECIPE],
    ),
    "a dense network's recovery": (("pattern=dense",), ["recipe.recovery_epochs=3"]),
}


@pytest.mark.parametrize(("settings", "more"), FOUND.values(), ids=FOUND)
def test_result_of_another_run(tiny, finished, tmp_path, capsys, settings, more):
    """The two differ in nothing that the result depends on."""
    places = (f"cache_dir={finished.parents[1] / 'cache'}", f"results_dir={tmp_path}", "recipe.epochs=4")
    first, found = (sf.run(*tiny, *places, *settings, *overrides).folder for overrides in ((), more))
    assert (found / "row.json").read_text() == (first / "row.json").read_text()
    for folder in (first, found):
        assert main([str(folder), places[0]]) in SEEN, capsys.readouterr()


@pytest.mark.parametrize(("limit", "model"), [("null", "transformer_mt"), ("2", "huggingface_mt")])
def test_translations_are_searched_again(tiny, tmp_path, capsys, limit, model):
    """Of batches that hold a number of tokens, no number of rows is known before."""
    pairs, own = write_pairs(tmp_path / "pairs", val=8), {"transformer_mt": "size=tiny"}
    path = f"path={make_translator(tmp_path / 'bart', 'bart')}" if model not in own else own[model]
    translation = (f"model={model}", f"model.{path}", "dataset=multi30k", f"dataset.path={pairs}")
    small = (
        "dataset.max_length=32",
        "dataset.batch_tokens=128",
        "dataset.vocabulary=300",
        f"trainer.limit_batches={limit}",
    )
    places = (f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}")
    folder = sf.run(*tiny[:4], *places, *translation, *small, *WITHOUT_SWAP).folder
    given = [f"model.{path}"] if model not in own else []
    assert main([str(folder), places[0], f"dataset.path={pairs}", *given]) in SEEN, capsys.readouterr()
    assert re.search("accuracy: holds, masked", capsys.readouterr().out)
