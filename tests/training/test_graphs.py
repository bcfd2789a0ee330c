"""CUDA graphs of training steps: what is recorded, when, and that replays change no weight's training."""

import copy
import logging

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.utils._pytree import tree_leaves

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.measure import accuracy
from sparsefront.measure.accuracy import evaluate
from sparsefront.models.unpadded import unpad
from sparsefront.training import graphs
from sparsefront.training.graphs import MOST_GRAPHS, GraphedForward, HiddenStates, HostCopies
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x, *, double=False):
        hidden = self.norm(self.first(x)).relu()
        return {"logits": self.last(hidden) * (2 if double else 1), "hidden": hidden.detach(), "kind": "plain"}


@pytest.fixture
def recorded(monkeypatch):
    """Graphs that run what was recorded once more and write its results where they were; how often each ran.

    As in memory that graphs share, a replay overwrites what others of its pool have returned.
    """
    runs, memory = [], {}

    def record(run, pool):
        gradients = (one.grad for one in record.net.parameters() if one.grad is not None)
        saved = [(one, one.clone()) for one in (*record.net.buffers(), *gradients)]
        returned, index = run(), len(runs)
        for one, before in saved:
            one.data.copy_(before)  # recording runs nothing
        runs.append(0)
        flat = list(returned.values() if isinstance(returned, dict) else returned)
        held = [one.detach() if isinstance(one, torch.Tensor) else None for one in flat]
        pool = object() if pool is None else pool
        memory.setdefault(pool, []).extend(one for one in held if one is not None)

        def replay():
            runs[index] += 1
            for one in memory[pool]:
                one.fill_(torch.nan)
            if isinstance(returned, dict):
                with torch.enable_grad():  # which a function of autograd turns off
                    again = record.latest = list(run().values())
            else:
                again = torch.autograd.grad(
                    [one for one in record.latest if isinstance(one, torch.Tensor) and one.requires_grad],
                    record.parameters,
                    record.given(),
                    allow_unused=True,
                )
            for own, new in zip(held, again, strict=True):
                if isinstance(new, torch.Tensor):
                    own.copy_(new.detach())

        return returned, replay, pool

    monkeypatch.setattr(graphs, "record", record)
    return record, runs


def graphed(net, record):
    record.net, record.parameters = net, list(net.parameters())
    forward = GraphedForward(net, net.forward)
    record.given = lambda: next(
        graph._given for graph in forward._graphs.values() if graph._given[0].shape == record.latest[0].shape
    )
    return forward


def test_replays_train_as_the_network(recorded):
    """Accumulated gradients of two sizes, an unused parameter, an output without a gradient and one that is no tensor."""
    record, runs = recorded
    torch.manual_seed(0)
    plain = Net()
    net = copy.deepcopy(plain)
    forward = graphed(net, record)
    for step in range(5):
        for micro in range(2):
            x = torch.randn(4 + micro, 6)
            ends = []
            for call in (plain.forward, forward):
                out = call(x, double=False)
                assert out["kind"] == "plain" and not out["hidden"].requires_grad
                out["logits"].square().sum().backward()
                ends.append(out)
            assert torch.equal(ends[0]["logits"], ends[1]["logits"]), (step, micro)
        for one in (plain, net):
            with torch.no_grad():
                for parameter in one.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad
                        parameter.grad = None
    assert runs == [4, 4, 4, 4]  # all but the first of each size
    for one, other in zip(plain.state_dict().values(), net.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


def test_each_size_is_recorded(recorded, caplog):
    caplog.set_level(logging.INFO)
    record, runs = recorded
    net = Net()
    forward = graphed(net, record)
    record.given = lambda: None

    def calls(*sizes, **given):
        for rows in sizes:
            forward(torch.randn(rows, 6), **given)
        return len(runs) // 2

    assert calls(4) == 0 and calls(4) == 1 and calls(4) == 1, "the second of a size"
    assert calls(5, 5, 6) == 2
    assert calls(4, 4, double=True) == 3, "another value that is no tensor"
    net.norm.eval()
    assert calls(4, 4) == 4, "a frozen norm"
    net.first.weight.data = net.first.weight.data.clone()
    assert calls(4) == 4 and calls(4) == 5 and len(forward._graphs) == 1, "weights that lie elsewhere"
    net.eval()
    assert calls(7, 7) == 5
    net.train()
    with torch.no_grad():
        assert calls(7, 7) == 5
    sizes = list(range(20, 20 + 2 * MOST_GRAPHS))
    calls(*sizes, *sizes)
    assert len(forward._graphs) == MOST_GRAPHS
    assert caplog.text.count("64 sizes of batches are captured, further ones are launched") == 1


class Blocks(nn.Module):
    """Adds a value that it makes on the CPU."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(2))
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        x = x + torch.full((1,), 0.5).to(x.device) + torch.tensor(0.25, device=x.device)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def replays(monkeypatch):
    """Graphs that run what was recorded once more; one entry for each replay."""
    count = []

    def record(run, pool):
        returned = run()

        def replay():
            count.append(1)
            for own, new in zip(tree_leaves(returned), tree_leaves(run()), strict=True):
                own.copy_(new)

        return returned, replay, pool

    monkeypatch.setattr(graphs, "record", record)
    return count


def test_validations_are_captured_alone(replays):
    """Weights change in place; calls with gradients in eval mode run eagerly."""
    net = Blocks().eval()
    forward = GraphedForward(net, net.forward)
    for call in range(4):
        x = torch.randn(3, 32)
        with torch.inference_mode() if call < 3 else torch.no_grad():
            assert torch.equal(forward(x), net(x)) and len(replays) == min(call, 2)
        with torch.no_grad():
            net.head.weight += 0.1
        assert forward(x).requires_grad and forward.replays == 0


def test_replays_return_hidden_states(replays):
    teacher = Blocks().eval().requires_grad_(False)
    states = HiddenStates(teacher, ["blocks.1"])
    forward = GraphedForward(teacher, teacher.forward, states=states, trains=False)
    for call in range(4):
        x = torch.randn(3, 32)
        states.listen()
        with torch.no_grad():
            output = forward(x)
            (state,) = states.take()
            assert torch.equal(output, teacher.head(state)), call
        assert forward.replays == max(0, call)
    assert forward(x).shape == (3, 5) and forward.replays == 3, "calls with gradients run eagerly"


class Kept:
    """A task and its evaluator, which keeps the outputs."""

    metric_name, samples = "accuracy", 0

    def __init__(self, reduces_outputs=False):
        self.reduces_outputs, self.outputs = reduces_outputs, []

    def net_inputs(self, batch):
        return {name: batch[name] for name in batch if name != "labels"}

    def predict(self, net, inputs):
        return net(**inputs)

    def evaluator(self, data, split):
        return self

    def update(self, output, batch):
        self.outputs.append((getattr(output, "logits", output), batch))

    def compute(self):
        return {}

    def standard_errors(self):
        return {}

    def outcomes(self, metric):
        return None


def evaluated(net, batches, device="cpu", dtype=torch.float32, reduces_outputs=False, graphs=True):
    """The outputs of an evaluation."""
    data = pl.LightningDataModule()
    data.test_dataloader = lambda: batches
    task = Kept(reduces_outputs)
    evaluate(task, net, data, "test", device=torch.device(device), dtype=dtype, graphs=graphs)
    assert "forward" not in vars(net) and all(batch is other for (_, batch), other in zip(task.outputs, batches))
    return [output for output, _ in task.outputs]


@pytest.mark.parametrize("reduces_outputs", [False, True])
@pytest.mark.parametrize("net", [Blocks(), nn.Sequential(nn.GELU(), nn.Flatten())], ids=["weights", "no weights"])
def test_evaluations_replay_repeated_shapes(net, reduces_outputs, replays, monkeypatch):
    batches = [{"x" if isinstance(net, Blocks) else "input": torch.randn(rows, 32)} for rows in (4, 4, 4, 3, 4)]
    expected = evaluated(net, batches)
    assert not replays
    monkeypatch.setattr(accuracy, "_captures_on", lambda device: True)
    for output, plain in zip(evaluated(net, batches, reduces_outputs=reduces_outputs), expected, strict=True):
        assert torch.equal(output, plain)
    assert len(replays) == 3, "neither the first of a size nor the only one"
    evaluated(net, batches, graphs=False)
    assert len(replays) == 3


def test_hooked_networks_are_launched(replays, monkeypatch, caplog):
    net, batches = Blocks(), [{"x": torch.randn(4, 32)}] * 3
    monkeypatch.setattr(accuracy, "_captures_on", lambda device: True)
    net.head.register_forward_hook(lambda *_: None)
    evaluated(net, batches)
    assert not replays and "CUDA graphs are left out: the network has a hook on head" in caplog.text


def test_unpadded_networks_are_launched(replays, monkeypatch):
    """The number of tokens is not that of the shape."""
    sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 8}
    config = transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    net, masks = unpad(transformers.BertForSequenceClassification(config).eval()), torch.ones(3, 2, 8).long()
    masks[1, :, 4:] = 0
    monkeypatch.setattr(accuracy, "_captures_on", lambda device: True)
    evaluated(net, [{"input_ids": torch.arange(16).view(2, 8), "attention_mask": mask} for mask in masks])
    assert not replays


@pytest.mark.parametrize("full", [True, False])
def test_copied_masks_are_the_captured(monkeypatch, full):
    """transformers leaves out a mask that masks nothing, but not in a capture, where it cannot look into it."""
    from transformers.utils import import_utils

    config = transformers.MPNetConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    net, copies = transformers.MPNetModel(config).eval(), HostCopies()
    ids, mask = torch.arange(2, 8)[None], torch.ones(1, 6, dtype=torch.long)
    mask[:, -1] = int(full)
    monkeypatch.setattr("sparsefront.training.graphs._moves", lambda values, named: torch.device("cpu") in values)
    masks = []
    real = transformers.models.mpnet.modeling_mpnet.create_bidirectional_mask

    def noted(*values, **named):
        masks.append(real(*values, **named))
        return masks[-1]

    monkeypatch.setattr(transformers.models.mpnet.modeling_mpnet, "create_bidirectional_mask", noted)
    asks = import_utils.is_cuda_stream_capturing
    with torch.no_grad():
        GraphedForward(net, net.forward, trains=False)(ids, attention_mask=mask)
    with copies.patch(capturing=False):
        expected = net(ids, attention_mask=mask).last_hidden_state
    assert import_utils.is_cuda_stream_capturing is asks
    monkeypatch.setattr(import_utils, "is_cuda_stream_capturing", lambda: True)  # as in a capture
    with copies.patch(capturing=True):
        torch.testing.assert_close(net(ids, attention_mask=mask).last_hidden_state, expected)
    assert [one is None for one in masks] == [False, False, False]


@pytest.mark.parametrize("failures", [1, 2])
def test_uncaptured_call_runs_as_before(failures, replays, monkeypatch, caplog):
    """The first capture may have failed at what it ran for the first time."""
    capture, left = graphs.record, iter(range(failures))

    def record(run, pool):
        if next(left, None) is None:
            return capture(run, pool)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(graphs, "record", record)
    net = Blocks().eval()
    forward = GraphedForward(net, net.forward, trains=False)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(4, 32)
            assert torch.equal(forward(x), net(x))
    assert forward.failed == (failures == 2) and len(replays) == (2 if failures == 1 else 0)
    line = "CUDA graphs are left out: operation not permitted when stream is capturing"
    assert caplog.text.count(line) == int(forward.failed)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"accelerator": "cpu"}, "is for trainings on one GPU; use false"),
        ({"accelerator": "gpu", "devices": 2}, "is for trainings on one GPU; use false"),
        ({"accelerator": "gpu", "accumulate_grad_batches": 2}, "takes a step for each batch: not with accumulate_grad"),
    ],
)
def test_settings_that_record_nothing_are_refused(given, reason, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InvalidSetting, match=f"^cuda_graphs=True: {reason}"):
        TrainerSettings(**given, precision="32-true", cuda_graphs=True).check()
    assert "cuda_graphs" not in TrainerSettings(accelerator="cpu").cache_key()


@pytest.mark.gpu
@pytest.mark.parametrize("compile", ["none", "blocks"])
@pytest.mark.parametrize(
    "recovery",
    [sf.recovery.Distill(hidden_states=1.0), sf.recovery.SquareHead(soft_targets=1.0), sf.recovery.Distill()],
)
def test_captured_teacher_on_a_gpu(recovery, compile, monkeypatch):
    torch.manual_seed(0)
    net, made = Blocks(), []
    masks = sf.prune(net, "block_wise", 0.5, granularity=16, tell=len)
    batches = [(x, x[:, :5].argmax(dim=1)) for x in torch.randn(320, 32).split(32)]
    init = GraphedForward.__init__
    monkeypatch.setattr(
        GraphedForward, "__init__", lambda self, *args, **named: (made.append(self), init(self, *args, **named))[1]
    )
    ends = []
    for graphs_used in (False, True):
        trainer = TrainerSettings(
            accelerator="gpu", precision="32-true", compile=compile, cuda_graphs=graphs_used, progress_bar=False
        )
        student = copy.deepcopy(net)
        torch.manual_seed(5)
        arguments = {"recovery": recovery, "dense_net": copy.deepcopy(net), "trainer": trainer}
        sf.recover(student, masks, batches, F.cross_entropy, **arguments)
        ends.append(student)
    assert sorted(one.replays for one in made)[:1] == [0] and sum(one.replays >= 8 for one in made) == 2, (
        "no validation"
    )
    for one, other in zip(*(end.parameters() for end in ends), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
def test_captured_steps_on_a_gpu(precision):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 5))
    masks = sf.prune(net, "block_wise", 0.5, granularity=16, tell=len)
    batches = [(x, x[:, :5].argmax(dim=1)) for x in torch.randn(330, 32).split(32)]  # the last one is shorter
    ends = []
    for recorded in (False, True):
        settings = TrainerSettings(accelerator="gpu", precision=precision, cuda_graphs=recorded, progress_bar=False)
        one = copy.deepcopy(net)
        torch.manual_seed(5)
        sf.recover(one, masks, batches, F.cross_entropy, trainer=settings, recipe=Recipe(ema=0.9))
        ends.append(one)
    for one, other in zip(*(end.parameters() for end in ends), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("full", [True, False])
def test_on_a_gpu_mpnet_is_captured(full, caplog):
    """It makes positions on the CPU, and a constant of its mask; the first capture finds that out."""
    torch.manual_seed(0)
    config = transformers.MPNetConfig(vocab_size=20, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
    net = transformers.MPNetForSequenceClassification(config).cuda().train()
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    forward, mask = GraphedForward(net, net.forward), torch.ones(4, 16, dtype=torch.long, device="cuda")
    mask[:, -1] = int(full)
    for _ in range(8):
        ids = torch.randint(2, 20, (4, 16), device="cuda")
        output = forward(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(output, net(ids, attention_mask=mask).logits, rtol=1e-4, atol=1e-4)
        output.sum().backward()  # whose kernels the first call warms up
    assert not forward.failed and forward.replays >= 4, caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["dense", "masked", "swapped"])
def test_captured_evaluation_on_a_gpu(kind, monkeypatch, caplog):
    """Of MPNet in bf16, on padded batches of two lengths."""
    torch.manual_seed(0)
    config = transformers.MPNetConfig(vocab_size=90, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)
    net = transformers.MPNetForSequenceClassification(config).to("cuda", torch.bfloat16).eval()
    batches = []
    for length in (32, 32, 64, 32, 64, 32, 64):
        ids, real = torch.randint(2, 90, (8, length)), torch.arange(length) < torch.randint(8, length, (8, 1))
        batches.append({"input_ids": ids.masked_fill(~real, 1), "attention_mask": real.long()})
    if kind != "dense":
        masks = sf.prune(net, "block_wise", 0.5, granularity=32, tell=len)
    if kind == "swapped":
        inputs = {name: value.cuda() for name, value in batches[0].items()}
        sf.swap(net, masks, inputs, kernel="sparse", tell=len)
    made, init = [], GraphedForward.__init__
    monkeypatch.setattr(
        GraphedForward, "__init__", lambda self, *args, **named: (made.append(self), init(self, *args, **named))[1]
    )
    captured = evaluated(net, batches, "cuda", torch.bfloat16)
    monkeypatch.setattr(accuracy, "_captures_on", lambda device: False)
    for output, launched in zip(captured, evaluated(net, batches, "cuda", torch.bfloat16), strict=True):
        torch.testing.assert_close(output, launched, rtol=0, atol=1e-2)
    assert made[0].replays >= 3 and not made[0].failed and "left out" not in caplog.text
