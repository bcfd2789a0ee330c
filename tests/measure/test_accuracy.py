"""Evaluation: every sample once, in the dtype that is measured, evaluated in fp32."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sparsefront.measure.accuracy import as_float, evaluate

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.seen = []

    def forward(self, x, ids):
        self.seen.append((x.dtype, ids.dtype, self.training))
        return self.fc(x)


class Data:
    def prepare_data(self): ...

    def setup(self, stage):
        self.stage = stage

    def loader(self, rows):
        return [{"x": torch.randn(4, 3), "ids": torch.arange(4), "labels": torch.zeros(4)} for _ in range(rows // 4)]

    def val_dataloader(self):
        return self.loader(8)

    def test_dataloader(self):
        return self.loader(20)


class Evaluator:
    def __init__(self):
        self.dtypes, self.samples = set(), 0

    def update(self, output, batch):
        self.dtypes.add(output.dtype)
        self.samples += len(batch["labels"])

    def compute(self):
        return {"accuracy": 0.5, "samples": self.samples}

    def standard_errors(self):
        return {"accuracy": 0.1}

    def outcomes(self, metric):
        return f"of {metric}"


@pytest.fixture
def task():
    evaluator = Evaluator()
    return SimpleNamespace(
        metric_name="accuracy",
        net_inputs=lambda batch: {"x": batch["x"], "ids": batch["ids"]},
        predict=lambda net, inputs: net(**inputs),
        evaluator=lambda data, split: evaluator,
        used=evaluator,
    )


@pytest.mark.parametrize(("split", "stage", "samples"), [("val", "validate", 8), ("test", "test", 20)])
def test_the_whole_split_is_seen(task, split, stage, samples):
    data = Data()
    assert evaluate(task, Net(), data, split, device=CPU, dtype=torch.float32).samples == samples
    assert data.stage == stage


@pytest.mark.parametrize("limit", [5, 8])
def test_limit_ends_after_its_batch(task, limit):
    found = evaluate(task, Net(), Data(), "test", device=CPU, dtype=torch.float32, limit=limit)
    assert found.samples == found.metrics["samples"] == 8
    assert (found.metrics["accuracy"], found.standard_errors) == (0.5, {"accuracy": 0.1})
    assert found.outcomes == "of accuracy", "of the tracked metric"


def test_floats_take_the_measured_dtype(task):
    net = Net()
    evaluate(task, net.train(), Data(), "val", device=CPU, dtype=torch.bfloat16)
    assert set(net.seen) == {(torch.bfloat16, torch.int64, False)}
    assert task.used.dtypes == {torch.float32}


def test_hugging_face_output_keeps_its_kind():
    from transformers.modeling_outputs import QuestionAnsweringModelOutput

    output = QuestionAnsweringModelOutput(start_logits=torch.ones(2, 3).half(), end_logits=torch.zeros(2, 3).half())
    plain = as_float(output)
    assert isinstance(plain, QuestionAnsweringModelOutput)
    assert plain.start_logits.dtype == torch.float32 and plain.loss is None
