"""The timed batch: real samples of the size that was asked for."""

from types import SimpleNamespace

import pytest
import torch

from sparsefront.measure.problems import timed_inputs

TASK = SimpleNamespace(net_inputs=lambda batch: {name: value for name, value in batch.items() if name != "labels"})


def build(batches, **size):
    return timed_inputs(TASK, batches, **{"sequence_length": None, "device": "cpu", "dtype": torch.float32} | size)


def images(*rows):
    return [
        {"x": torch.full((count, 1, 2, 2), float(index)), "labels": torch.zeros(count)}
        for index, count in enumerate(rows)
    ]


def tokens(rows, length):
    ids = torch.arange(rows * length).view(rows, length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_rows_are_collected_over_batches():
    x = build(images(3, 3, 3), batch_size=5)["x"]
    assert x[:, 0, 0, 0].tolist() == [0, 0, 0, 1, 1]


def test_too_few_samples_are_repeated():
    assert build(images(1, 1), batch_size=5)["x"][:, 0, 0, 0].tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("side", [None, 1, 2, 5])
def test_images_are_brought_to_a_size(side):
    x = build(images(3), batch_size=2, image_size=side)["x"]
    assert x.shape == (2, 1, side or 2, side or 2) and not x.any()
    assert build([tokens(2, 3)], batch_size=2, image_size=side)["input_ids"].shape == (2, 3)


@pytest.mark.parametrize(("length", "expected"), [(2, [0, 1]), (3, [0, 1, 2]), (5, [0, 1, 2, 0, 1])])
def test_tokens_are_cut_or_repeated(length, expected):
    inputs = build([tokens(2, 3)], batch_size=2, sequence_length=length)
    assert inputs["input_ids"][0].tolist() == expected
    assert inputs["attention_mask"].shape == (2, length)


def test_floats_are_cast_and_ids_are_not():
    inputs = build([{"x": torch.ones(1, 2), "input_ids": torch.ones(1, 2).long()}], batch_size=1, dtype=torch.bfloat16)
    assert (inputs["x"].dtype, inputs["input_ids"].dtype) == (torch.bfloat16, torch.int64)
