"""What a killed training left is not gone on from where it is damaged."""

import pytest
import torch

from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.recovery.base import RoundRecord
from sparsefront.recovery.rounds import FinishedRounds
from sparsefront.training.resume import CHECKPOINT, checkpoint_of


def damage(file, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        # inside the tensor: torch.load itself would take it
        content[content.find(torch.full((64,), 1.5).numpy().tobytes()) + 16] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "changed"])
def test_a_damaged_checkpoint_is_named_and_not_used(tmp_path, caplog, how):
    torch.save({"weight": torch.full((64,), 1.5)}, tmp_path / CHECKPOINT)
    assert checkpoint_of(tmp_path) == tmp_path / CHECKPOINT
    damage(tmp_path / CHECKPOINT, how)
    assert checkpoint_of(tmp_path) is None
    assert str(tmp_path / CHECKPOINT) in caplog.text


@pytest.mark.parametrize(
    ("file", "how"),
    [("weights.safetensors", "truncated"), ("weights.safetensors", "changed"), ("rounds.json", "truncated")],
)
def test_damaged_rounds_start_again(tmp_path, caplog, file, how):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    torch.nn.init.constant_(net[0].weight, 1.5)
    masked = MaskedWeights(net, ["0"])
    masked.set({"0": torch.ones(8, 8, dtype=torch.bool)})
    rounds = FinishedRounds(tmp_path, net=net, masked=masked, movement=None)
    rounds.keep([RoundRecord(seconds=1.0)])
    assert rounds.restore() == [RoundRecord(seconds=1.0, earlier_seconds=1.0)]
    damage(tmp_path / "after_001_rounds" / file, how)
    assert rounds.restore() == []
    assert str(tmp_path / "after_001_rounds") in caplog.text
    rounds.keep([RoundRecord(seconds=2.0)])
    assert rounds.restore() == [RoundRecord(seconds=2.0, earlier_seconds=2.0)]
