"""Translation by LSTMs: steps, padding, rows of a beam, and sparse steps."""

import copy

import pytest
import torch

import sparsefront as sf
from sparsefront.data.base import DataInfo
from sparsefront.measure.end_to_end import time_pair
from sparsefront.measure.settings import Measure
from sparsefront.models.lstm_nmt import LstmNmt
from sparsefront.tasks.decoding import BOS, PAD, Decoding, SourceEncoder, WholeTranslation

INFO = DataInfo(kind="translation", num_classes=0, sequence_length=12, vocabulary=40)
LENGTHS = torch.tensor([7, 3, 5])


@pytest.fixture
def net():
    torch.manual_seed(0)
    return LstmNmt(width=32).build(INFO).eval()


def sentences() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, 40, (3, length), generator=generator) for length in (7, 6))
    mask = torch.arange(7) < LENGTHS[:, None]
    target[:, 0] = BOS
    return {"source": source.masked_fill(~mask, PAD), "source_mask": mask, "target": target}


def test_steps_equal_the_whole_target(net):
    given = sentences()
    with torch.no_grad():
        expected, state = net(**given), net.encode(given["source"], given["source_mask"])
        order = torch.tensor([2, 0, 0, 1])
        state, expected, tokens = net.reorder(state, order), expected[order], given["target"][order]
        for step in range(tokens.shape[1]):
            logits, state = net.step(tokens[:, step], state)
            torch.testing.assert_close(logits, expected[:, step])
            order = order.flip(0)
            state, expected, tokens = net.reorder(state, order), expected[order], tokens[order]


def test_whole_targets_train_like_steps(net):
    """Gradients of a decoder that runs token by token, as with hooks; with zeros in the weights."""
    net, given = net.double(), sentences()
    with torch.no_grad():
        net.decoder.lstm.ih_l0.weight *= torch.rand_like(net.decoder.lstm.ih_l0.weight) < 0.5
    stepping = copy.deepcopy(net)
    stepping.decoder.lstm.register_forward_hook(lambda *_: None)
    for one in (net, stepping):
        one(**given).square().sum().backward()
    for (name, parameter), other in zip(net.named_parameters(), stepping.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-9, atol=1e-10, msg=name)


def test_padding_changes_nothing(net):
    given = sentences()
    with torch.no_grad():
        together = net(**given)
        for row, length in enumerate(LENGTHS.tolist()):
            alone = {name: tensor[row : row + 1] for name, tensor in given.items()}
            alone |= {name: alone[name][:, :length] for name in ("source", "source_mask")}
            torch.testing.assert_close(net(**alone)[0], together[row])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_parts_that_are_timed(device):
    """Dense and sparse, on a GPU as CUDA graphs, whole translations too."""
    torch.manual_seed(0)
    net = LstmNmt(width=32 if device == "cpu" else 512).build(INFO).eval()
    net.to(device, torch.float32 if device == "cpu" else torch.float16)
    given = {name: value.to(device) for name, value in sentences().items()}
    sparse = copy.deepcopy(net)
    masks = sf.prune(sparse, "tile_wise", 0.5, granularity=16, layers=LstmNmt().prunable(net), tell=len)
    sf.swap(sparse, masks, given, kernel="reference" if device == "cpu" else "sparse", seconds=10, tell=len)
    source = {name: given[name] for name in ("source", "source_mask")}
    modes = ["eager"] if device == "cpu" else ["eager", "cuda_graph"]
    settings = Measure(device=device, samples=5, repeats=1, warmup=1, execution_modes=modes, variants=[])
    for part in (SourceEncoder, lambda one: WholeTranslation(one, Decoding(3, 1.0, 6))):
        timed = time_pair(part(net).eval(), part(sparse).eval(), source, settings)
        assert timed.dense.latency.median_ms > 0 and timed.sparse.median_ms > 0
        assert timed.execution.fastest.medians_ms.keys() == timed.dense.execution.medians_ms.keys() == {*modes}
