"""Tasks by the name that data sets and models call them."""

from typing import Any

from torch import nn

from sparsefront.tasks.base import Optimizes, Task
from sparsefront.tasks.extractive_qa import ExtractiveQA
from sparsefront.tasks.image_classification import ImageClassification
from sparsefront.tasks.sequence_classification import SequenceClassification

TASKS: dict[str, type[Task]] = {task.kind: task for task in (ImageClassification, SequenceClassification, ExtractiveQA)}


def build_task(kind: str, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> Task:
    """The task that a data set poses, around a network.

    Args:
        kind: `DataInfo.kind`.
        dataset: the data set's settings.
        optimization: needed to train, not to evaluate.
    Raises:
        ValueError: no such kind; lists those there are.
    """
    if kind not in TASKS:
        raise ValueError(f"task {kind}: there are {', '.join(TASKS)}")
    return TASKS[kind].for_dataset(net, dataset, optimization)
