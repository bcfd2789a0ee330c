"""The attention mask of an encoder-decoder network is about the encoder's text, whatever lengths both texts have."""

import pytest
import torch
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

import sparsefront as sf
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.recovery import distillation
from sparsefront.tasks.plain_task import PlainTask

ROWS, READ, REAL = 4, 6, 3  # texts, their tokens, and those that are no padding
T5 = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
SIDES = ("encoder", "decoder")
BART = BartConfig(
    vocab_size=50,
    d_model=16,
    max_position_embeddings=20,
    **{f"{side}_layers": 1 for side in SIDES},
    **{f"{side}_attention_heads": 2 for side in SIDES},
    **{f"{side}_ffn_dim": 32 for side in SIDES},
)


@pytest.fixture(params=["t5", "bart", "inside another"])
def net(request) -> nn.Module:
    torch.manual_seed(0)
    if request.param == "bart":
        return BartForConditionalGeneration(BART).eval()
    own = T5ForConditionalGeneration(T5).eval()
    return Outer(own) if request.param == "inside another" else own


class Outer(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, input_ids, attention_mask, labels):
        return self.net(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def batch(written: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.zeros(ROWS, READ, dtype=torch.long)
    mask[:, :REAL] = 1
    texts = {"input_ids": READ, "labels": written}
    drawn = {name: torch.randint(3, 50, (ROWS, length), generator=generator) for name, length in texts.items()}
    return drawn | {"attention_mask": mask}


@pytest.mark.parametrize("written", [READ, READ + 1])
def test_padding_of_two_texts(net, written):
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    calibration = NetworkCalibration(PlainTask(net, None), layers, lambda: [batch(written)])
    rows = calibration.input_sums(1, lambda x: x.new_full((1,), len(x)))
    for name, count in rows.items():
        cross = any(part in name for part in ("EncDecAttention", "encoder_attn")) and name[-1] not in "qo"
        reads = cross and not name.endswith(("q_proj", "out_proj"))
        of_encoder = "encoder." in name or reads
        assert count == ROWS * (REAL if of_encoder else written), name
    assert sum(bool(module._forward_hooks) for module in net.modules()) == 0


def test_hidden_states_of_a_decoder(net, monkeypatch):
    seen = []
    loss = distillation.square_head_loss

    def noted(states, positions=None):
        seen.append(positions)
        return loss(states, positions)

    monkeypatch.setattr(distillation, "square_head_loss", noted)
    masks = sf.prune(net, "element_wise", 0.5, tell=len)
    trainer = sf.TrainerSettings(accelerator="cpu", checkpoint=False)
    sf.recover(net, masks, [batch(READ)], recovery="square_head", dense_net=net, epochs=1, trainer=trainer)
    encoder, decoder = seen
    assert encoder.sum() == ROWS * REAL and decoder is None
