"""One process and its modes: nothing on a CPU, no deadlock with itself, no cost, and no seconds that were waits."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from waiting import wait_until

from sparsefront import gpu
from sparsefront.gpu import exclusive, released, shared, yield_gpu
from sparsefront.progress import TRAINING, WAITING, recorded

CPU = torch.device("cpu")


@pytest.fixture
def locks(tmp_path, monkeypatch) -> Path:
    """The CPU as a stand-in for a GPU."""
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "lock_name", lambda device: "stand-in")
    monkeypatch.setattr(gpu, "_accesses", {})
    return tmp_path / "locks"


@pytest.fixture
def timer_elsewhere(locks, tmp_path, monkeypatch):
    """timer_elsewhere() starts a process that holds the lock alone until another one is told that it waits.

    Returns the file that says that it has it.
    """
    started, tell = [], gpu.log.info

    def tell_and_end(line: str) -> None:
        tell(line)
        (tmp_path / "held.enough").touch()

    monkeypatch.setattr(gpu, "TELL_AFTER_S", 0.05)
    monkeypatch.setattr(gpu.log, "info", tell_and_end)

    def start() -> Path:
        file, script = tmp_path / "held", Path(__file__).with_name("processes.py")
        started.append(subprocess.Popen([sys.executable, str(script), "hold_alone", str(file)]))
        return file

    yield start
    for process in started:
        process.kill()
        process.wait()


def mode() -> str | None:
    return gpu._access_to(CPU).mode


def test_blocks_inside_each_other(locks):
    with shared(CPU):
        with shared(CPU), exclusive(CPU), exclusive(CPU), shared(CPU), released(CPU):
            assert mode() == "exclusive"
        assert mode() == "shared"
        with released(CPU):
            assert mode() is None
            with shared(CPU):
                assert mode() == "shared"
            assert mode() is None
        with pytest.raises(KeyError), exclusive(CPU):
            raise KeyError
        assert mode() == "shared"
    assert mode() is None


def test_a_folder_without_locks_is_told_and_done_without(locks, caplog):
    locks.write_text("no folder")
    with exclusive(CPU):
        pass
    with shared(CPU):
        yield_gpu(CPU)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "no lock for this GPU, so that other processes may disturb its timings"
    ]


def test_a_training_gives_way_and_counts_no_wait(timer_elsewhere, tmp_path):
    """A timer comes while the first batch of digits is trained on."""
    import pytorch_lightning as pl

    from sparsefront.data.digits import Digits
    from sparsefront.tasks.classification import ImageClassification
    from sparsefront.training.fit import fit
    from sparsefront.training.recipe import Optimization, Recipe
    from sparsefront.training.trainer import TrainerSettings

    class Net(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    class TimerComes(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 0:
                self.held = timer_elsewhere()
                wait_until(gpu._access_to(CPU).gate.exclusive_wanted)
                assert mode() == "shared" and not self.held.exists()

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 1:
                assert mode() == "shared" and self.held.exists()

    net = Net(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    data = Digits().data_module(batch_size=32, seed=0, cache_dir=tmp_path)
    recipe = Recipe(epochs=1)
    task = ImageClassification(net, num_classes=10, optimization=Optimization(recipe, lr=0.01, total_steps=2))
    trainer = TrainerSettings(accelerator="cpu", limit_batches=2, progress_bar=False)
    start = time.perf_counter()
    with recorded() as spans:
        trained = fit(
            task,
            data,
            epochs=1,
            recipe=recipe,
            trainer=trainer,
            loggers=[],
            directory=tmp_path,
            callbacks=(TimerComes(),),
            stage="dense",
        )
    waited = sum(span.seconds for span in spans if span.kind == WAITING)
    assert waited > 0.05 and trained.steps == 2
    assert trained.seconds <= time.perf_counter() - start - waited + 0.01
    assert {(span.kind, span.detail) for span in spans} == {(TRAINING, "dense"), (WAITING, "")} and mode() is None
