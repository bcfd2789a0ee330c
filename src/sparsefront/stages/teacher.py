"""Stage teacher: the teacher's logits for every training row, computed once for all points that it teaches."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from safetensors.torch import load_file
from torch import Tensor

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.artifacts.durable import save_tensors
from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.config.sweeps import note_work
from sparsefront.data.text import TextData
from sparsefront.gpu import share_gpu
from sparsefront.networks import in_eval_mode
from sparsefront.progress import bar
from sparsefront.stages.network import device_of, load_net, make_task, open_data
from sparsefront.tasks.base import TEACHER_LOGITS, with_square_mask
from sparsefront.training.graphs import capture_passes
from sparsefront.training.resume import WEIGHTS

log = logging.getLogger(__name__)
LOGITS = "logits.safetensors"
BATCHES = 4  # training batches per forward, which needs no memory for a backward pass


def get_or_compute_logits(
    experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any] | None, dense: Artifact
) -> Path | None:
    """The file of logits; None if the recovery stores none. The dense weights are part of the key, because weights that were
    removed and trained again may differ.
    """
    if cache_key is None:
        return None
    cache_key = cache_key | {"weights": file_digest(dense.path / WEIGHTS)}
    while (stored := store.get("teacher", cache_key, stage="recover")) is None:
        with store.making("teacher", cache_key) as new, share_gpu(device_of(experiment)):
            save_tensors(new.folder / LOGITS, {TEACHER_LOGITS: compute_logits(experiment, dense.path)})
    if not stored.reused:
        note_work(shared_seconds=stored.seconds)
    return stored.path / LOGITS


def compute_logits(experiment: Experiment, dense: Path) -> Tensor:
    """The teacher's logits in eval mode and in the precision of the training: fp32 [rows, classes], on the CPU.

    Args:
        dense: folder of the dense network's stage.
    """
    device, recovery = device_of(experiment), experiment.continued_recovery
    net = recovery.make_teacher(partial(load_net, experiment, dense / WEIGHTS)).to(device)
    task, data = make_task(experiment, net), _text(open_data(experiment, unlabeled=True))
    part, dtype = data.part("train"), experiment.trainer.product_dtype
    batches = part.text.starts.diff().argsort(descending=True, stable=True).split(BATCHES * data.batch_size)
    log.info("recover: logits of the teacher for %d rows", len(part))
    logits = torch.empty(len(part), experiment.dataset.info.num_classes)
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    with (
        in_eval_mode(net),
        torch.no_grad(),
        autocast,
        capture_passes(net, enabled=device.type == "cuda" and experiment.trainer.cuda_graphs is not False),
        bar(batches, description="teacher", unit="batch") as shown,
    ):
        for rows in shown:
            batch = {name: values.to(device) for name, values in part.__getitems__(rows.tolist()).items()}
            (output,) = task.logits(task.call(net, with_square_mask(task.net_inputs(batch), net)))
            logits[rows] = output.float().cpu()
    return logits


def open_taught(experiment: Experiment, logits: Path | None, *, seed: int) -> pl.LightningDataModule:
    """The data of a recovery, with the teacher's logits in the training batches if they are stored.

    Args:
        logits: the stage's file.
        seed: of the order and augmentations of train.
    """
    data = open_data(experiment, seed=seed, unlabeled=True)
    if logits is not None:
        _text(data).add_column("train", TEACHER_LOGITS, load_file(logits)[TEACHER_LOGITS])
    return data


def _text(data: pl.LightningDataModule) -> TextData:
    assert isinstance(data, TextData)  # `validate` requires text
    return data
