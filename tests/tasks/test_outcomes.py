"""What each sample adds to a metric gives the metric back, over all samples and over some."""

import io
import resource
import zipfile

import numpy as np
import pytest
import torch

from sparsefront.tasks.classification import LabelEvaluator
from sparsefront.tasks.outcomes import Outcomes, load_outcomes, save_outcomes

pytestmark = pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save")
METRICS = {"accuracy": 3, "f1": 2, "matthews_correlation": 3, "pearson": 1, "spearman": 1}


def evaluated(metric: str, classes: int, rows: slice = slice(None)) -> LabelEvaluator:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(60, classes, generator=generator)
    labels = torch.randint(classes, (60,), generator=generator) if classes > 1 else torch.randn(60, generator=generator)
    if classes == 1:
        labels = labels + logits[:, 0]
    evaluator = LabelEvaluator((metric,), classes, logits_of=lambda output: output)
    evaluator.update(logits[rows], {"labels": labels[rows]})
    return evaluator


@pytest.mark.parametrize(("metric", "classes"), METRICS.items())
def test_metric_over_some_samples(metric, classes):
    outcomes = evaluated(metric, classes).outcomes(metric)
    for rows in (slice(None), slice(10, 50)):
        chosen = np.arange(60)[rows]
        expected = evaluated(metric, classes, rows).compute()[metric]
        assert outcomes.metric_over(chosen) == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("error:The variance of predictions")
@pytest.mark.parametrize(("metric", "classes"), METRICS.items())
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("samples", [8, 1])
def test_labels_that_are_all_equal(metric, classes, label, samples):
    """As of few samples that were held out; no correlation with them is defined, which counts as 0."""
    evaluator = LabelEvaluator((metric,), classes, logits_of=lambda output: output)
    logits = torch.randn(samples, classes, generator=torch.Generator().manual_seed(0))
    labels = torch.full((samples,), label)
    evaluator.update(logits, {"labels": labels if classes > 1 else labels.float()})
    found = evaluator.compute()[metric]
    assert evaluator.outcomes(metric).metric_over(np.arange(samples)) == pytest.approx(found)
    assert found == 0 or metric in ("accuracy", "f1")
    assert evaluator.standard_errors()[metric] >= 0


@pytest.mark.parametrize(("metric", "classes"), METRICS.items())
def test_outcomes_come_back(tmp_path, metric, classes):
    outcomes = evaluated(metric, classes).outcomes(metric)
    save_outcomes(tmp_path / "outcomes.npz", {"dense": outcomes, "sparse": outcomes})
    found = load_outcomes(tmp_path / "outcomes.npz")
    assert list(found) == ["dense", "sparse"] and found["sparse"].samples == outcomes.samples
    assert found["dense"].metric_over(np.arange(60)) == outcomes.metric_over(np.arange(60))
    assert found["dense"].values.tolist() == outcomes.values.tolist()


def archive(**arrays: np.ndarray | bytes) -> bytes:
    """An .npz file; bytes are taken as a whole array file, header and all."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, array in {"metric": np.array("accuracy"), "samples": np.array("dev"), **arrays}.items():
            content = io.BytesIO()
            np.save(content, array) if isinstance(array, np.ndarray) else content.write(array)
            packed.writestr(f"{name}.npy", content.getvalue())
    return file.getvalue()


def npy(shape: str, values: bytes = b"", kind: str = "<f8") -> bytes:
    """An array file with whatever its header states."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (117 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values


ONES = np.ones(4, dtype=np.uint8)
OTHERS = {
    "petabyte": (archive(sparse=npy("(125000000000,)")), "states 125000000000 values, more than were evaluated"),
    "bomb": (archive(sparse=npy("(4,)", bytes(2**28))), "sparse.npy states 4 values, and holds fewer or more"),
    "cut off": (archive(sparse=npy("(4,)", bytes(8))), "sparse.npy states 4 values, and holds fewer or more"),
    "name": (archive(metric=npy("()", bytes(400), "<U999"), sparse=ONES), "is no archive of outcomes (ValueError"),
    "objects": (archive(sparse=npy("(4,)", b"", "|O")), "sparse.npy is no array of outcomes"),
    "planes": (archive(sparse=np.ones((2, 2))), "sparse.npy is no array of outcomes"),
    "nested": (archive(sparse=npy("(" * 50 + "4,")), "sparse.npy is no array of outcomes"),
    "kind": (archive(sparse=npy("(4,)", bytes(12), "<f3")), "is no archive of outcomes (TypeError"),
    "texts": (archive(sparse=np.array(["a"] * 4)), "sparse is no list of numbers"),
    "five": (archive(sparse=np.ones(5)), "sparse.npy states 5 values, more than were evaluated"),
    "three": (archive(sparse=np.ones(3)), "sparse holds 3 samples, and 4 were evaluated"),
    "NaN": (archive(sparse=np.array([1, 1, 1, np.nan])), "sparse holds NaN or infinity"),
    "labels": (archive(sparse=ONES, labels=ONES[:3]), "sparse holds 4 samples, and labels 3"),
    "classes": (archive(sparse=ONES, labels=np.array([2**40] * 4)), "labels holds classes from 1099511627776"),
    "negative": (archive(sparse=-np.ones(4, dtype=int), labels=ONES), "sparse holds classes from -1 to -1"),
    "many": (archive(**{f"side{n}": ONES for n in range(20)}), "holds 22 arrays, more than 16"),
    "no metric": (archive(metric=ONES, sparse=ONES), "is no archive of outcomes (ValueError"),
    "no zip": (b"PK\x03\x04" + bytes(100), "is no archive of outcomes (BadZipFile"),
    "flipped": (archive(sparse=np.arange(4.0))[:60] + b"\xff" * 9 + archive(sparse=np.arange(4.0))[69:], "outcomes"),
    "empty": (b"", "is no archive of outcomes (BadZipFile"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_refused(tmp_path, kind):
    """A header may state a petabyte, and a small archive unpack to one: nothing is unpacked beyond the split's samples."""
    content, complaint = OTHERS[kind]
    (tmp_path / "outcomes.npz").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError) as raised:
        load_outcomes(tmp_path / "outcomes.npz", samples=4)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"
    assert complaint in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("metric", ["no metric of ours", "f1"])
def test_metric_that_cannot_be_taken(metric):
    outcomes = Outcomes(metric, np.array([0, 7]), np.array([7, 7]), "dev")
    with pytest.raises(ValueError, match=f"{metric} cannot be taken over its samples"):
        outcomes.require_metric()
