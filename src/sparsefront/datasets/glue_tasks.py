"""The tasks of GLUE: where each keeps its sentences and labels, and how it is evaluated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GlueTask:
    """One task in its original TSV layout and on the hub.

    Attributes:
        folder: of the original distribution.
        first, second: columns of the sentences, by header, or by position where the file has no header.
        label: column of the label.
        label_names: spelling of each class in the TSV, in the order of the class numbers; empty for a score.
        hub_first, hub_second: columns of the sentences on the hub, where labels are numbers already.
        metrics: of the task, the first being the one that is tracked.
        dev_file: without its ending; the labels of the test files were never published, so dev is what is reported on.
        hub_dev: split on the hub.
        skips_broken_rows: the original file holds rows with too few fields, which all loaders leave out.
    """

    folder: str
    first: str | int
    second: str | int | None
    label: str | int
    label_names: tuple[str, ...]
    hub_first: str
    hub_second: str | None
    metrics: tuple[str, ...] = ("accuracy",)
    dev_file: str = "dev"
    hub_dev: str = "validation"
    skips_broken_rows: bool = False

    @property
    def has_header(self) -> bool:
        return isinstance(self.first, str)

    @property
    def num_classes(self) -> int:
        """1 where the label is a score."""
        return max(1, len(self.label_names))


BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")

GLUE_TASKS = {
    "cola": GlueTask("CoLA", 3, None, 1, BINARY, "sentence", None, metrics=("matthews_correlation", "accuracy")),
    "sst2": GlueTask("SST-2", "sentence", None, "label", BINARY, "sentence", None),
    "mrpc": GlueTask(
        "MRPC", "#1 String", "#2 String", "Quality", BINARY, "sentence1", "sentence2", metrics=("accuracy", "f1")
    ),
    "qqp": GlueTask(
        "QQP",
        "question1",
        "question2",
        "is_duplicate",
        BINARY,
        "question1",
        "question2",
        metrics=("accuracy", "f1"),
        skips_broken_rows=True,
    ),
    "stsb": GlueTask(
        "STS-B", "sentence1", "sentence2", "score", (), "sentence1", "sentence2", metrics=("pearson", "spearman")
    ),
    "mnli": GlueTask(
        "MNLI",
        "sentence1",
        "sentence2",
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        "premise",
        "hypothesis",
        dev_file="dev_matched",
        hub_dev="validation_matched",
    ),
    "qnli": GlueTask("QNLI", "question", "sentence", "label", ENTAILMENT, "question", "sentence"),
    "rte": GlueTask("RTE", "sentence1", "sentence2", "label", ENTAILMENT, "sentence1", "sentence2"),
}
