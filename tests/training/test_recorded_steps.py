"""Training steps that are recorded once for each shape of batch give the weights of steps that are not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import BertConfig, BertForSequenceClassification

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.datasets.encoded_text import EncodedText, TextPart
from sparsefront.datasets.split_data import NoRows, SplitData
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.callback import ApplyMasks
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.recovery.distillation import Distillation
from sparsefront.recovery.square_head import SquareHeadDistillation
from sparsefront.schedule.gradual import Gradual
from sparsefront.tasks.sequence_classification import SequenceClassification
from sparsefront.training import determinism
from sparsefront.training import fit as fit_module
from sparsefront.training.fit import fit
from sparsefront.training.optimization import Optimization
from sparsefront.training.recipe import Recipe
from sparsefront.training.recorded_steps import RecordedSteps
from sparsefront.training.trainer import TrainerSettings

STEPS, EPOCHS, BATCH = 12, 2, 4
LENGTHS = (8, 16, 24)  # of a batch; each comes four times an epoch
LAYERS = [f"bert.encoder.layer.{i}.output.dense" for i in range(2)]


def bert(width: int = 32) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * width}
    return BertForSequenceClassification(BertConfig(vocab_size=50, attn_implementation="sdpa", **sizes))


class InOrder(SplitData):
    """Batches of rows as they lie, which are about as long as one another."""

    def training_batches(self, part, *, drop_last, generator):
        return BatchSampler(SequentialSampler(part), self.batch_size, drop_last=drop_last)


def text(batch: int) -> SplitData:
    """Rows of a padded batch differ in length by 1; every third epoch of the lengths is not padded, and has no mask."""
    rows = range(STEPS * batch)
    padded = [i // batch // len(LENGTHS) % 3 < 2 for i in rows]
    lengths = torch.tensor([LENGTHS[i // batch % len(LENGTHS)] - i % 2 * padded[i] for i in rows])
    starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    tokens = (torch.arange(int(starts[-1])) * 7 % 50).to(torch.int32)
    encoded = EncodedText(
        {"input_ids": tokens, "token_type_ids": torch.zeros_like(tokens)},
        starts,
        {"labels": torch.arange(STEPS * batch) % 3 % 2},
    )
    return InOrder(
        lambda split: TextPart(encoded, 0, None, max(LENGTHS)) if split == "train" else NoRows(),
        batch_size=batch,
        seed=0,
    )


class Recorder:
    """In place of CUDA graphs: repeats the function itself. Counts what is recorded and how often it is replayed."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            run()

        return replay


def train(
    folder: Path,
    *callbacks: pl.Callback,
    accelerator: str = "cpu",
    cuda_graph: bool = False,
    width: int = 32,
    batch: int = BATCH,
) -> dict[str, Tensor]:
    """Under 2:4 masks that tighten, with dropout and clipping."""
    net = bert(width)
    masked = MaskedWeights(net, LAYERS)

    def masks_at(sparsity, previous):
        scores = {name: net.get_submodule(name).weight.detach().abs() for name in LAYERS}
        return make_masks(scores, NM(m=4), PerLayer(), sparsity, final_sparsity=0.5, previous=previous)

    masked.set(masks_at(0.0, None))
    total = EPOCHS * STEPS
    tighten = ApplyMasks(masked, schedule=Gradual(updates=3), sparsity=0.5, make_masks=masks_at, total_steps=total)
    trainer = TrainerSettings(
        accelerator=accelerator, progress_bar=False, precision="bf16-mixed", deterministic=True, cuda_graph=cuda_graph
    )
    pl.seed_everything(0, verbose=False)
    fit(
        SequenceClassification(net, num_classes=2, optimization=Optimization(Recipe(), lr=0.01, total_steps=total)),
        text(batch),
        epochs=EPOCHS,
        recipe=Recipe(epochs=EPOCHS),
        trainer=trainer,
        loggers=[],
        directory=folder,
        callbacks=(tighten, *callbacks),
    )
    masked.check()
    return {name: value.cpu() for name, value in net.state_dict().items()}


BLOCK = "bert.encoder.layer.0"
TAUGHT = {
    "alone": lambda: (),
    "distill": lambda: (Distillation(bert(), hardness=0.5, temperature=2.0, hidden_states=1.0, hidden_layers=[BLOCK]),),
    "square_head": lambda: (SquareHeadDistillation(bert(), [BLOCK], soft_targets=1.0),),
}


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    """What stands in for CUDA graphs in every fit, also on a CPU."""
    found = Recorder()
    monkeypatch.setattr(fit_module, "RecordedSteps", lambda: RecordedSteps(found))
    monkeypatch.setattr(TrainerSettings, "_why_not_recorded", lambda self: None)
    return found


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """As it was, after the test."""
    monkeypatch.setenv(determinism.WORKSPACE, determinism.FIXED_WORKSPACE)


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("taught", TAUGHT)
def test_the_weights_are_those_of_a_training_without(tmp_path, recorder, taught):
    plain = train(tmp_path, *TAUGHT[taught]())
    assert recorder.recorded == 0
    assert equal(train(tmp_path, *TAUGHT[taught](), cuda_graph=True), plain)
    # the first batch of each length runs as it is, with and without a mask
    assert (recorder.recorded, recorder.replayed) == (2 * len(LENGTHS), EPOCHS * STEPS - 2 * len(LENGTHS))


class Move(pl.Callback):
    """Parameters come to lie elsewhere."""

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        if trainer.global_step == STEPS:
            for parameter in module.parameters():
                parameter.data = parameter.data.clone()


def test_parameters_that_moved_are_recorded_anew(tmp_path, recorder):
    assert equal(train(tmp_path, Move(), cuda_graph=True), train(tmp_path, Move()))
    assert recorder.recorded == 2 * len(LENGTHS)


class Watch(pl.Callback):
    """The task, to look at it afterwards; and the losses that the steps returned."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        self.task = module
        self.losses.append(outputs["loss"])


def test_losses_are_told_and_the_task_is_as_it_was(tmp_path, recorder):
    plain, recorded = Watch(), Watch()
    train(tmp_path, plain)
    train(tmp_path, recorded, cuda_graph=True)
    assert torch.equal(torch.stack(plain.losses), torch.stack(recorded.losses))
    assert not {"step_loss", "backward", "optimizer_zero_grad"} & vars(recorded.task).keys()


class Reads(pl.Callback):
    """A loss that looks at its value."""

    def on_train_start(self, trainer, module):
        module.objective = lambda task, output, batch: (
            task.loss(output, batch) * (1 if task.loss(output, batch) > 0 else 2)
        )


def test_what_cannot_be_recorded_is_said(tmp_path, monkeypatch):
    def refuse(run):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(fit_module, "RecordedSteps", lambda: RecordedSteps(refuse))
    with pytest.raises(
        InvalidSetting, match=r"trainer\.cuda_graph=True: this training step cannot be recorded: RuntimeError: CUDA"
    ):
        train(tmp_path, cuda_graph=True)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"accelerator": "cpu"}, "needs a GPU"),
        ({"devices": 2}, "trainer.devices"),
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=1"),
        ({"compile": "blocks"}, "compile=none"),
        ({"precision": "16-mixed"}, "without loss scaling"),
    ],
)
def test_settings_that_do_not_go_with_it(monkeypatch, settings, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    trainer = TrainerSettings(cuda_graph=True, **settings)
    assert reason in trainer._why_not_recorded()


def test_a_cpu_is_refused():
    with pytest.raises(InvalidSetting, match="needs a GPU; use false"):
        TrainerSettings(accelerator="cpu", cuda_graph=True).check()


@pytest.mark.gpu
@pytest.mark.parametrize("taught", TAUGHT)
def test_cuda_graphs_give_the_same_weights(tmp_path, taught):
    plain = train(tmp_path, *TAUGHT[taught](), accelerator="gpu")
    assert equal(train(tmp_path, *TAUGHT[taught](), accelerator="gpu", cuda_graph=True), plain)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [4, 128])
def test_cuda_graphs_give_the_same_losses_at_the_width_of_minilm(tmp_path, batch):
    plain, recorded = Watch(), Watch()
    sizes = {"accelerator": "gpu", "width": 384, "batch": batch}
    weights = train(tmp_path, plain, **sizes)
    with_graphs = train(tmp_path, recorded, cuda_graph=True, **sizes)
    differ = torch.stack(plain.losses) != torch.stack(recorded.losses)
    assert not differ.any(), f"steps {differ.nonzero().flatten().tolist()}"
    assert equal(with_graphs, weights)


@pytest.mark.gpu
def test_a_loss_that_reads_a_value_cannot_be_recorded(tmp_path):
    with pytest.raises(InvalidSetting, match=r"trainer\.cuda_graph=True: this training step cannot be recorded"):
        train(tmp_path, Reads(), accelerator="gpu", cuda_graph=True)
