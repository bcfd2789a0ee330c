"""BLEU, standard errors, and per-sample outcomes."""

import hashlib
import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from sparsefront.artifacts.bounded_files import NO_ARCHIVE, Unreadable, read_bytes_bounded
from sparsefront.errors import first_line, printable

if TYPE_CHECKING:
    from torch import Tensor

BLEU = "bleu"
ORDERS = 4  # n-grams of 1 to 4 words
BITS = 10  # per count: words of a sentence, or its n-grams that are in the reference
MOST_WORDS = 2**BITS - 1


def pack_counts(words: int, matches: Sequence[int]) -> int:
    """Pack a translation's BLEU counts into one integer below 2^50.

    Args:
        words: of the translation, at most `MOST_WORDS`.
        matches: numbers of its n-grams of 1 to 4 words that are in the reference.
    """
    return sum(count << BITS * place for place, count in enumerate((words, *matches)))


def corpus_bleu(packed: np.ndarray, reference_words: np.ndarray) -> float:
    """BLEU as a fraction: the geometric mean of the four n-gram precisions times the brevity penalty.

    The k-th precision without matches is 1 / (2^k * number of n-grams): sacreBLEU's `exp` smoothing.

    Args:
        packed: int64 [sentences], from `pack_counts`.
        reference_words: int64 [sentences].
    Source: Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation", 2002; Post, "A Call for Clarity in
            Reporting BLEU Scores", 2018. A test compares it with sacreBLEU.
    """
    words, *matches = ((packed >> BITS * place) & MOST_WORDS for place in range(ORDERS + 1))
    own, reference_length = int(words.sum()), int(reference_words.sum())
    if not own or not matches[0].any():
        return 0.0
    logs, unmatched = 0.0, 0
    for order, matched in enumerate(matches):
        ngrams = int(np.maximum(words - order, 0).sum())
        if not ngrams:  # no translation is that long
            return 0.0
        count = int(matched.sum())
        unmatched += not count
        logs += math.log(count / ngrams if count else 1 / (2**unmatched * ngrams))
    return math.exp(logs / ORDERS + min(0.0, 1 - reference_length / own))


# Perplexity is the exception among metrics: not a fraction, and lower is better.

LOWER_IS_BETTER = frozenset({"perplexity"})
"""Metrics for which lower is better. They are not fractions, and are not shown in percent."""
_OF_MEAN: dict[str, Callable[[float], float]] = {"perplexity": math.exp}
"""Metric -> function from the mean over samples to the metric; identity for others."""


def lower_is_better(metric: str | None) -> bool:
    """Whether lower is better; False for None, which stands for results with different metrics."""
    return metric in LOWER_IS_BETTER


@contextmanager
def constants_allowed() -> Iterator[None]:
    """Context in which the undefined correlation with a constant is NaN, without torchmetrics' warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The variance of predictions or target is close to zero")
        yield


DRAWS = 200


def error_of_proportion(proportion: float, n: int) -> float:
    """Standard error of a proportion of n independent samples: √(p (1 - p) / n)."""
    return math.sqrt(proportion * (1 - proportion) / n)


def error_of_mean(values: "Tensor") -> float:
    """Standard error of the mean of n independent values, [n]: standard deviation / √n; 0 for a single value."""
    return float(values.double().std() / math.sqrt(len(values))) if len(values) > 1 else 0.0


def error_by_bootstrap(metric: Callable[["Tensor"], float], n: int) -> float:
    """Standard error of a metric that is not a mean: its spread over test sets resampled with replacement.

    Args:
        metric: indices [n] of samples -> the metric; draws for which it is undefined are skipped.
    Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979. The generator's seed is fixed.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([metric(torch.randint(n, (n,), generator=generator)) for _ in range(DRAWS)])
    defined = drawn[drawn.isfinite()]
    return float(defined.double().std()) if len(defined) > 1 else 0.0


SAMPLES, METRIC, LABELS = "samples", "metric", "labels"
FEWEST_CLASSES = 2
MOST_FILE_BYTES = 256 * 2**20  # size of an outcomes file
MOST_SAMPLES = 10_000_000  # per split, if the number is not known
MOST_CLASSES = 10_000  # a metric over labels may need its square
MOST_ARRAYS = 16
MOST_NAME_BYTES = 4096  # length of a metric's name or a digest
MOST_HEADER_BYTES = 512
# The .npy header that `save_outcomes` writes: format version 1.0, zero or one dimension.
_HEADER = re.compile(
    rb"\{'descr': '([<|][biufU]\d{1,3})', 'fortran_order': False, 'shape': \((?:(\d{1,12}),)?\), \} *\n"
)


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Per-sample outcomes of one network on one split, in the order of the split.

    Args:
        metric: name of the tracked metric.
        values: [n]; if `labels` is None, contributions to a mean (0 or 1 for accuracy, F1 of an answer), else predictions;
            for BLEU, `pack_counts`.
        labels: [n], for metrics that are not means over samples; for BLEU, words of the references.
        samples: digest that identifies the samples; evaluations with the same digest can be compared pairwise.
    """

    metric: str
    values: np.ndarray
    labels: np.ndarray | None
    samples: str

    def __len__(self) -> int:
        return len(self.values)

    def metric_over(self, chosen: np.ndarray) -> float:
        """The metric over some samples, given by indices, int64 [k]; 0 if it is undefined there."""
        if self.labels is None:
            mean = float(self.values[chosen].mean())
            return _OF_MEAN[self.metric](mean) if self.metric in _OF_MEAN else mean
        if self.metric == BLEU:
            return corpus_bleu(self.values[chosen], self.labels[chosen])
        import torch

        # labels may all be of one class and predictions of another
        classes = [int(part.max()) + 1 for part in (self.labels, self.values) if part.dtype.kind in "iu"]
        from sparsefront.tasks.metrics import METRICS  # late: a comparison of accuracies needs no torchmetrics

        metric = METRICS[self.metric](max([FEWEST_CLASSES, *classes]))
        with constants_allowed():
            value = float(metric(torch.from_numpy(self.values[chosen]), torch.from_numpy(self.labels[chosen])))
        return 0.0 if math.isnan(value) else value

    def pseudo_values(self) -> np.ndarray:
        """What each sample adds, float64 [n]: the values themselves if the metric is their mean, else jackknife pseudo-values,
        whose mean is the metric up to its bias, and whose variance / n is its squared standard error.

        Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 11.
        """
        n, values = len(self), self.values.astype(np.float64)
        if n < 2 or (self.labels is None and self.metric not in _OF_MEAN):
            return values if self.labels is None else np.array([self.metric_over(np.arange(n))])
        if self.labels is None:
            left_out = np.array([_OF_MEAN[self.metric](rest) for rest in (values.sum() - values) / (n - 1)])
        else:  # equal samples are left out once
            _, first, kind = np.unique(
                np.stack([self.values, self.labels]), axis=1, return_index=True, return_inverse=True
            )
            every = np.arange(n)
            left_out = np.array([self.metric_over(np.delete(every, sample)) for sample in first])[kind]
        return n * self.metric_over(np.arange(n)) - (n - 1) * left_out

    def require_metric(self) -> None:
        """Raise ValueError if the metric does not fit these values and labels, as in an edited file."""
        try:
            self.metric_over(np.arange(len(self)))
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{self.metric} cannot be taken over its samples ({first_line(error)})") from None


def samples_digest(names: Iterable[object]) -> str:
    """Digest of what identifies a split's samples, in order: question ids, or labels."""
    return hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()[:16]


def save_outcomes(file: Path, outcomes: Mapping[str, Outcomes]) -> None:
    """Write the outcomes of several networks on the same samples as one .npz.

    Args:
        outcomes: dense, masked or sparse -> outcomes.
    """
    first = next(iter(outcomes.values()))
    shared = {METRIC: np.array(first.metric), SAMPLES: np.array(first.samples)}
    if first.labels is not None:
        shared[LABELS] = first.labels
    with file.open("wb") as opened:
        np.savez_compressed(
            opened, **shared, **{side: side_outcomes.values for side, side_outcomes in outcomes.items()}
        )


def load_outcomes(file: Path, *, samples: int | None = None) -> dict[str, Outcomes]:
    """Load what `save_outcomes` wrote. Never decompresses more than arrays of that many samples take.

    Args:
        samples: number of evaluated samples; None if unknown.
    Raises:
        ValueError: the file is missing, of another kind, or damaged; says which in one line.
    """
    return parse_outcomes(read_bytes_bounded(file, max_bytes=MOST_FILE_BYTES), samples=samples)


def parse_outcomes(content: bytes, *, samples: int | None = None) -> dict[str, Outcomes]:
    """Like `load_outcomes`, from the file's bytes."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            infos = archive.infolist()
            if len(infos) > MOST_ARRAYS:
                raise Unreadable(f"holds {len(infos)} arrays, more than {MOST_ARRAYS}")
            arrays = {info.filename.removesuffix(".npy"): _array(archive, info, samples) for info in infos}
        names = [arrays.pop(name) for name in (METRIC, SAMPLES)]
        metric, digest = [str(name) for name in names if name.dtype.kind == "U" and not name.ndim]
    except Unreadable:
        raise
    except NO_ARCHIVE as error:
        raise Unreadable(f"is no archive of outcomes ({type(error).__name__}: {error})") from None
    labels = arrays.pop(LABELS, None)
    outcomes = {side: Outcomes(metric, values, labels, digest) for side, values in arrays.items()}
    for name, values in (arrays if labels is None else arrays | {LABELS: labels}).items():
        fault = _fault(values, samples, labels, counts=metric == BLEU)
        if fault is not None:
            raise Unreadable(f"{printable(name)} {fault}")
    return outcomes


def _array(archive: ZipFile, info: ZipInfo, samples: int | None) -> np.ndarray:
    """Load one array after checking its header against the entry's size."""
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or info.flag_bits & 1:
        raise Unreadable("is packed in a way that this program does not write")
    with archive.open(info) as stream:
        start = stream.read(10)
        length = int.from_bytes(start[8:], "little")
        header = _HEADER.fullmatch(stream.read(min(length, MOST_HEADER_BYTES)))
        if start[:8] != b"\x93NUMPY\x01\x00" or header is None:
            raise Unreadable(f"{printable(info.filename)} is no array of outcomes")
        kind = np.dtype(header[1].decode())
        count = 1 if header[2] is None else int(header[2])
        most = MOST_NAME_BYTES if kind.kind == "U" else kind.itemsize * (samples or MOST_SAMPLES)
        size = count * kind.itemsize
        if size > most:
            raise Unreadable(f"{printable(info.filename)} states {count} values, more than were evaluated")
        values = np.frombuffer(stream.read(size), kind)
        if len(values) != count or stream.read(1):
            raise Unreadable(f"{printable(info.filename)} states {count} values, and holds fewer or more")
    return values.reshape(()) if header[2] is None else values


def _fault(values: np.ndarray, samples: int | None, labels: np.ndarray | None, *, counts: bool) -> str | None:
    """Why these are not valid values or labels of a split's samples; None if they are. Predicted scores may be NaN.

    Args:
        counts: they are BLEU counts.
    """
    if values.ndim != 1 or values.dtype.kind not in "biuf" or not len(values):
        return "is no list of numbers"
    if len(values) != (len(values) if samples is None else samples):
        return f"holds {len(values)} samples, and {samples} were evaluated"
    if labels is not None and len(values) != len(labels):
        return f"holds {len(values)} samples, and {LABELS} {len(labels)}"
    if labels is None:
        return None if np.isfinite(values).all() else "holds NaN or infinity"
    if counts:
        whole = values.dtype.kind == "i" and 0 <= int(values.min()) <= int(values.max()) < 1 << BITS * (ORDERS + 1)
        return None if whole else "holds what are no counts of words"
    if values.dtype.kind != "f" and not 0 <= int(values.min()) <= int(values.max()) < MOST_CLASSES:
        return f"holds classes from {values.min()} to {values.max()}, of at most {MOST_CLASSES}"
    return None
