"""What a killed training left is not gone on from where it is damaged."""

import zipfile
from pathlib import Path

import pytest
import torch

from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.recovery.base import RoundRecord
from sparsefront.recovery.rounds import FinishedRounds
from sparsefront.training.resume import CHECKPOINT, checkpoint_of, seal


def damage(file, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        # inside the tensor: torch.load itself would take it
        content[content.find(torch.full((64,), 1.5).numpy().tobytes()) + 16] ^= 1
    file.write_bytes(content)


def saved(content: object, file: Path) -> None:
    torch.save(content, file)
    seal(file)


def in_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def halve(file: Path) -> None:
    torch.save({"state_dict": {"weight": torch.full((64,), 0.75)}}, file)


def upgrade(file: Path) -> None:
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"of another torch"


CHANGES = {
    "truncated": lambda file: damage(file, "truncated"),
    "changed": lambda file: damage(file, "changed"),
    "folder": in_a_folder,
    "halved": halve,
    "upgrade": upgrade,
    "list": lambda file: saved([1, 2], file),
    "other network": lambda file: saved({"state_dict": {"weight": torch.ones(3)}}, file),
    "other names": lambda file: saved({"state_dict": {"other": torch.ones(64)}}, file),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_unfit_checkpoint_is_named_and_unused(tmp_path, caplog, change):
    task = torch.nn.Module()
    task.weight = torch.nn.Parameter(torch.zeros(64))
    file = tmp_path / CHECKPOINT
    saved({"state_dict": {"weight": torch.full((64,), 1.5)}}, file)
    assert checkpoint_of(tmp_path, task) == file
    change(file)
    assert checkpoint_of(tmp_path, task) is None and not file.is_dir()
    (record,) = caplog.records
    assert str(file) in record.getMessage() and "\n" not in record.getMessage()


@pytest.mark.parametrize(
    ("file", "how"),
    [("weights.safetensors", "truncated"), ("weights.safetensors", "changed"), ("rounds.json", "truncated")],
)
def test_damaged_rounds_start_again(tmp_path, caplog, file, how):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    torch.nn.init.constant_(net[0].weight, 1.5)
    masked = MaskedWeights(net, ["0"])
    masked.set({"0": torch.ones(8, 8, dtype=torch.bool)})
    rounds = FinishedRounds(tmp_path, net=net, masked=masked, accumulator=None, least_seconds=0)
    rounds.keep([RoundRecord(seconds=1.0)])
    assert rounds.restore() == [RoundRecord(seconds=1.0, earlier_seconds=1.0)]
    damage(tmp_path / "after_001_rounds" / file, how)
    assert rounds.restore() == []
    assert str(tmp_path / "after_001_rounds") in caplog.text
    other = torch.nn.Sequential(torch.nn.Linear(4, 8))
    rounds.keep([RoundRecord(seconds=2.0)])
    assert FinishedRounds(tmp_path, net=other, masked=masked, accumulator=None, least_seconds=0).restore() == []
    assert rounds.restore() == [RoundRecord(seconds=2.0, earlier_seconds=2.0)]
