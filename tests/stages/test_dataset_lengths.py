"""Latency over the evaluation set's own batches: each size timed once, weighed by how often it occurs."""

import json
from pathlib import Path

import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from sparsefront.config.validate import validate
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.measure.problems import batches_by_size, dataset_size_text
from sparsefront.records import check_numbers
from sparsefront.results.candidates import conditions
from sparsefront.results.record import OF_DATASET
from sparsefront.results.tables import lengths_text
from sparsefront.stages import latency

QUICK = ("trainer=cpu", "measure.device=cpu", "measure.variants=[]", "measure.samples=5", "measure.repeats=2")
DATASET = (*QUICK, "measure.lengths=dataset", "measure.batch_size=8", "measure.warmup=0")


@pytest.fixture
def texts(tmp_path) -> list[str]:
    """20 short and 21 long sentences in dev: five batches of 8, the last of one row."""
    folder = tmp_path / "data" / "SST-2"
    folder.mkdir(parents=True)
    short = [f"{word}\t{label}" for word, label in (("good", 1), ("bad", 0))] * 20
    long = [f"{'very ' * 70}{line}" for line in short]
    for split, rows in (("train", short + long), ("dev", short[:20] + long[:21])):
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return [
        "model=bert",
        "model.size=tiny",
        "dataset=glue",
        f"dataset.path={tmp_path / 'data'}",
        "dataset.split_by=rows",
        "recipe.batch_size=4",
    ]


def samples() -> dict[str, list[list[float]]]:
    return json.loads((Path(HydraConfig.get().runtime.output_dir) / "samples.json").read_text())


def test_each_size_is_timed_once(run, texts):
    row = run(*DATASET, *texts, "measure.evaluate_limit=null")
    speed = row.speed
    sizes = [(entry["batch_size"], entry["sequence_length"], entry["batches"]) for entry in speed.dataset_lengths]
    assert sizes == [(8, 64, 2), (8, 128, 3), (1, 128, 1)], "in the loader's order, rounded up to 64"
    for side in ("dense", "sparse"):
        total = sum(entry["batches"] * entry[f"latency_{side}_ms"] for entry in speed.dataset_lengths)
        assert getattr(speed, f"latency_{side}_dataset_ms") == pytest.approx(total / 6)
    assert speed.speedup_dataset_low <= speed.speedup_dataset <= speed.speedup_dataset_high
    assert speed.sequence_length == 128 and speed.latency_dense_ms > 0, "the fixed length is timed as well"
    taken = samples()
    for entry in speed.dataset_lengths:
        assert len(taken[f"dense {dataset_size_text(entry)}"]) == len(taken[f"sparse {dataset_size_text(entry)}"]) == 2
    assert speed.latency_device == "cpu" and speed.latency_kernel == "reference"
    file = Path(HydraConfig.get().runtime.output_dir) / "row.json"
    check_numbers(row, file)
    with pytest.raises(Edited, match="speedup_dataset="):
        check_numbers(row.with_values({"speedup_dataset": 9.0}), file)
    with pytest.raises(Edited, match="latency_dense_ms="):
        edited = [entry | {"latency_dense_ms": 9.0} for entry in speed.dataset_lengths]
        check_numbers(row.with_values({"dataset_lengths": edited}), file)


def test_unpadded_batches_are_timed_by_tokens(run, texts):
    padded, row = (run(*DATASET, *texts, f"inference.unpadded={unpadded}") for unpadded in ("false", "true"))
    speed = row.speed
    sizes = [(entry["batch_size"], entry["sequence_length"], entry["batches"]) for entry in speed.dataset_lengths]
    assert sizes == [(8, 3, 2), (8, 40, 1), (8, 80, 1)], "rows of 3 tokens, of 38 on average, of 73"
    assert "3 tokens in 2 batches" in lengths_text(row)
    assert {speed.dense_variant, speed.sparse_variant} == {"eager+unpadded"}
    assert speed.variants_autotuned == ["unpadded"] and padded.speed.variants_autotuned == []
    assert conditions(row) != conditions(padded) and row.identity.config_hash != padded.identity.config_hash
    for side in ("dense", "masked", "sparse"):
        assert getattr(row.quality, side) == getattr(padded.quality, side)
    kernels = row.kernels.kernel_per_layer.values()
    assert {layer["m"] for layer in kernels} == {8 * 128}, "at the fixed length, rows are full"
    alone = run(*QUICK, *texts, "inference.unpadded=true", "measure.latency=false", "kernel=none")
    assert alone.speed.dense_variant == "unpadded" and alone.quality.masked == padded.quality.masked


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure.mode=serve", "measure.rates=[50]"], "^inference.unpadded=True: is not of measure.mode=serve"),
        (["model=vit_small", "dataset=digits"], "^inference.unpadded=True: is for text; digits holds images"),
        (["inference.unpadded=1"], "^inference.unpadded=1: must be a valid boolean"),
    ],
    ids=["serving", "images", "no boolean"],
)
def test_unpadded_is_for_timed_text(composed, texts, arguments, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*QUICK, *(texts if "text" not in message else ()), "inference.unpadded=true", *arguments))


def test_size_without_memory(run, texts, monkeypatch):
    real = latency.time_size

    def time_size(ways, inputs, settings):
        if inputs["input_ids"].shape[1] == 128:
            raise torch.OutOfMemoryError("too much")
        return real(ways, inputs, settings)

    monkeypatch.setattr(latency, "time_size", time_size)
    row = run(*DATASET, *texts, "pattern=dense")
    assert [entry.get("not_measured") for entry in row.speed.dataset_lengths] == [None, "out of memory"]
    assert row.speed.latency_dense_ms > 0 and all(getattr(row.speed, name) is None for name in OF_DATASET)


class Plain:
    def net_inputs(self, batch):
        return batch


def test_batches_are_padded_to_their_longest():
    ids, mask = torch.arange(1, 49).reshape(2, 24), torch.zeros(2, 24, dtype=torch.long)
    mask[0, :17] = mask[1, :9] = 1
    batch = {"input_ids": ids, "attention_mask": mask}
    settings = {"device": torch.device("cpu"), "dtype": torch.float32}
    (found,) = batches_by_size(Plain(), [batch, batch], longest=128, **settings)
    assert found.batches == 2 and found.inputs["input_ids"].shape == (2, 64)
    assert found.inputs["attention_mask"].sum(1).tolist() == [17, 9]
    assert torch.equal(found.inputs["input_ids"][:, :24], ids)
    (short,) = batches_by_size(
        Plain(), [{name: value[:1, :24] for name, value in batch.items()}], longest=20, **settings
    )
    assert short.inputs["input_ids"].shape == (1, 20), "never longer than the data's longest"
    with pytest.raises(ValueError, match="no batch"):
        batches_by_size(Plain(), [], longest=128, **settings)
