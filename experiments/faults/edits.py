"""Count the edits of a stored result that `sparsefront.verify` misses, over all fields of the record, its export and other files.

    python -m experiments.faults.edits [FOLDER] [--out CSV]      writes edits.csv; FOLDER keeps the run that is edited

plain:     one byte or value of a file, with digests unchanged
manifest:  one entry of the export's files, with the cache's checksums updated
rehashed:  one field of row.json, with all digests of the record updated, so that only arithmetic and evaluation can detect it
An edit is detected if the exit status is not 0.
"""

import argparse
import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import runs
from experiments.harness.rows import write
from sparsefront.artifacts.content_digest import checksums, file_digest
from sparsefront.results.record import record_digest, result_fields
from sparsefront.verify.__main__ import main as verify

HERE = Path(__file__).parent
TINY = ("debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1")
CHOSEN = ("pattern=n_m", "sparsity=0.5", "recipe.epochs=4", "control=dense_continued", "measure.batch_size=[2,4]")

Edit = Callable[[Path], None]
"""Changes the copy of a run's folder that it is given."""


def make_run(folder: Path) -> tuple[Path, Path]:
    """Make a small finished run with a control and a latency curve; return its folder and cache."""
    assert runs.start(folder, *TINY, *CHOSEN).wait() == 0, runs.log_of(folder)
    return next((folder / "results").glob("*/row.json")).parent, folder / "cache"


def seal(row: Path) -> None:
    """Update the digests of the record and of the files next to it."""
    content = json.loads(row.read_text(encoding="utf-8"))
    for name in ("samples", "outcomes"):
        file = row.parent / {"samples": "samples.json", "outcomes": "outcomes.npz"}[name]
        content["identity"][f"{name}_sha256"] = file_digest(file)
    content["identity"]["record_sha256"] = record_digest(content)
    row.write_text(json.dumps(content), encoding="utf-8")


def seal_export(export: Path) -> None:
    """Update the checksums of the export's files."""
    record = export / "determined_by.json"
    content = json.loads(record.read_text(encoding="utf-8"))
    record.unlink()
    record.write_text(json.dumps(content | {"files": checksums(export)}), encoding="utf-8")


def another(value: Any) -> Any:
    """A different value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.5
    if isinstance(value, str):
        return f"{value}0"
    if isinstance(value, list):
        return [*value[:-1], another(value[-1])] if value else [1]
    if isinstance(value, dict):
        first = next(iter(value), None)
        return {"forged": 0.5} if first is None else value | {first: another(value[first])}
    return 7  # for null


FOR_NULL = {int: 7, float: 0.5, str: "forged", bool: True}


def rehashed() -> Iterator[tuple[str, Edit]]:
    """Edits of every field of the record; null becomes a value of the type of the field."""
    for field in result_fields():
        if field.name in ("record_sha256", "samples_sha256", "outcomes_sha256", "schema_version"):
            continue  # the first three are digests, which are updated

        def edit(folder: Path, field: Any = field) -> None:
            row = folder / "row.json"
            content = json.loads(row.read_text(encoding="utf-8"))
            value = content[field.group][field.name]
            if value is None:
                kinds = [kind for kind in FOR_NULL if kind.__name__ in str(field.hint)]
                content[field.group][field.name] = FOR_NULL[kinds[0]] if kinds else {"forged": 0.5}
            else:
                content[field.group][field.name] = another(value)
            row.write_text(json.dumps(content), encoding="utf-8")
            seal(row)

        yield f"{field.group}.{field.name}", edit
    for name in ("samples.json", "outcomes.npz"):
        yield name, lambda folder, name=name: (_other_content(folder / name), seal(folder / "row.json"))[0]


def _other_content(file: Path) -> None:
    """Change the sparse network's samples, or permute outcomes, which keeps their mean."""
    if file.suffix == ".json":
        content = json.loads(file.read_text(encoding="utf-8"))
        content["sparse"] = [[0.5 * sample for sample in repeat] for repeat in content["sparse"]]
        file.write_text(json.dumps(content), encoding="utf-8")
        return
    from sparsefront.tasks.outcomes import load_outcomes, save_outcomes

    by_side = load_outcomes(file)
    for side, outcomes in by_side.items():
        shifted = [np.roll(outcomes.values, by) for by in range(1, len(outcomes))]
        values = max(shifted, key=lambda values: (values != outcomes.values).sum())
        by_side[side] = replace(outcomes, values=values)
    save_outcomes(file, by_side)


def manifest() -> Iterator[tuple[str, Edit]]:
    """Edits of every entry of manifest.json and of the files that describe the layers' storage."""

    def entry(*keys: str | None) -> Edit:
        def edit(folder: Path) -> None:
            file = folder / "checkpoint" / "manifest.json"
            content = held = json.loads(file.read_text(encoding="utf-8"))
            for key in keys[:-1]:
                held = held[key or next(iter(held))]
            last = keys[-1] or next(iter(held))
            held[last] = "forged" if held[last] is None else another(held[last])
            file.write_text(json.dumps(content), encoding="utf-8")
            seal_export(folder / "checkpoint")

        return edit

    for key in ("pattern", "pattern_class", "pattern_parameters", "sparsity", "dense_layers", "format_version"):
        yield f"manifest.json {key}", entry(key)
    for key in ("n", "m", "permutation", "transposable"):
        yield f"manifest.json pattern_parameters.{key}", entry("pattern_parameters", key)
    for key in ("family", "parameters", "meta", "shape", "nnz", "density", "pattern"):
        yield f"manifest.json layers.{key}", entry("layers", None, key)
    yield "manifest.json parameters of a layer", entry("layers", None, "parameters", "n")
    yield "layer_sparsities.json", lambda folder: _layer_sparsities(folder / "checkpoint")
    yield "layer_patterns.json", lambda folder: _layer_patterns(folder / "checkpoint")


def _layer_sparsities(export: Path) -> None:
    file = export / "layer_sparsities.json"
    file.write_text(json.dumps(another(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")
    seal_export(export)


def _layer_patterns(export: Path) -> None:
    layer = next(iter(json.loads((export / "manifest.json").read_text(encoding="utf-8"))["layers"]))
    record = {"_target_": "sparsefront.patterns.element_wise.ElementWise"}
    (export / "layer_patterns.json").write_text(json.dumps({layer: record}), encoding="utf-8")
    seal_export(export)


def plain() -> Iterator[tuple[str, Edit]]:
    """Edits of one value per file, and of several values of row.json."""
    fields = {
        "identity": ("seed", "recovery_seed", "gpu", "commit", "time", "weights_sha256", "checkpoint"),
        "choice": ("pattern", "recipe_parameters", "recovery"),
        "sparsity": ("sparsity_achieved", "sparsity_per_layer"),
        "quality": ("sparse", "val_sparse", "dense_continued"),
        "speed": ("latency_sparse_ms", "speedup_low", "curve"),
        "size": ("weight_bytes_sparse",),
        "kernels": ("kernel_per_layer",),
        "cost": ("recovery_steps",),
    }
    for group, names in fields.items():
        for name in names:
            yield f"row.json {name}", lambda folder, group=group, name=name: _edit_row(folder / "row.json", group, name)
    files = ("samples.json", "outcomes.npz", *(f".hydra/{name}.yaml" for name in ("config", "overrides", "hydra")))
    names = ("model", "masks", "compressed", "permutations")
    files += tuple(f"checkpoint/{name}.safetensors" for name in names)
    files += ("checkpoint/manifest.json", "checkpoint/layer_sparsities.json", "checkpoint/determined_by.json")
    for name in files:
        yield name, lambda folder, name=name: _edit_file(folder / name)


def _edit_row(row: Path, group: str, name: str) -> None:
    content = json.loads(row.read_text(encoding="utf-8"))
    value = content[group][name]
    content[group][name] = "forged" if value is None else another(value)
    row.write_text(json.dumps(content), encoding="utf-8")


def _edit_file(file: Path) -> None:
    """Change the first digit of a value in a text file, or one bit in the middle of another file."""
    content = bytearray(file.read_bytes())
    if file.suffix in (".json", ".yaml"):
        text = content.decode()
        old, new = {
            "config.yaml": ("batch_size: 64", "batch_size: 65"),
            "overrides.yaml": ("sparsity=0.5", "sparsity=0.75"),
            "hydra.yaml": ("pattern: n_m", "pattern: uniform"),
            "determined_by.json": ('"code": "', '"code": "0'),
        }.get(file.name, ("0.5", "0.6"))
        assert old in text or file.name == "samples.json", file
        file.write_text(text.replace(old, new, 1) if old in text else f"{text} ", encoding="utf-8")
        return
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def unseen(folder: Path, cache: Path, edits: Iterator[tuple[str, Edit]]) -> tuple[int, list[str]]:
    """Number of edits, and names of those that verify misses."""
    tried, passed = 0, []
    for name, edit in edits:
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / "run"
            shutil.copytree(folder, copy, symlinks=False)
            edit(copy)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = verify([str(copy), "--cache-dir", str(cache)])
        tried += 1
        if status == 0:
            passed.append(name)
            print(f"  not seen: {name}", flush=True)
    return tried, passed


def main() -> None:
    """Count all kinds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="keeps the run that is edited")
    parser.add_argument("--out", type=Path, default=HERE / "edits.csv", help="the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, cache = make_run(arguments.folder or Path(temporary) / "run")
        assert verify([str(folder), "--cache-dir", str(cache)]) == 0, "it holds as it is"
        counts = []
        for kind in (plain, manifest, rehashed):
            tried, passed = unseen(folder, cache, kind())
            print(f"{kind.__name__}: {len(passed)} of {tried} not seen", flush=True)
            counts.append({"edit": kind.__name__, "tried": tried, "unseen": len(passed), "names": " ".join(passed)})
    write(arguments.out, ["edit", "tried", "unseen", "names"], counts)


if __name__ == "__main__":
    main()
