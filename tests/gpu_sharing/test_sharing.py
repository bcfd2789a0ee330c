"""A stand-in for a GPU in one process and several: timings are alone, no wait counts, and nobody waits for ever."""

import json
import time
from pathlib import Path

import pytest
import torch
from program_server import Program
from waiting import wait_until

from sparsefront import gpu
from sparsefront.gpu import exclusive, release_gpu, share_gpu, yield_gpu
from sparsefront.progress import TRAINING, WAITING, record_spans

pytest.importorskip("fcntl", reason="locks of POSIX systems")
SCRIPT = Path(__file__).with_name("processes.py")
CPU = torch.device("cpu")


@pytest.fixture
def start(tmp_path, monkeypatch, programs):
    """start(what) -> the process and the file that it writes; this process uses the same stand-in."""
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "lock_name", lambda device: "stand-in")
    monkeypatch.setattr(gpu, "_accesses", {})
    processes = []

    def make(what: str) -> tuple[Program, Path]:
        file = tmp_path / f"{len(processes)}.{what}"
        processes.append(programs.start([SCRIPT, what, file]))
        return processes[-1], file

    yield make
    for process in processes:
        process.kill()
        process.wait()


def wait_for(file: Path) -> None:
    wait_until(lambda: file.exists() and file.read_text())


def is_free(*, alone: bool) -> bool:
    """Whether this process could have the lock at once."""
    gate = gpu._access_to(CPU).gate
    free = not gate.exclusive_wanted() and gate._lock.take(shared=not alone, wait=False)
    gate.leave()
    return free


def intervals(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def overlap(one: list[dict], other: list[dict]) -> float:
    """Seconds in which both worked."""
    return sum(max(0.0, min(a["end"], b["end"]) - max(a["start"], b["start"])) for a in one for b in other)


def test_trainings_share_and_timings_are_alone(start):
    trainers = [start("train") for _ in range(2)]
    for _, file in trainers:
        wait_for(file)
    wait_until(lambda: overlap(*(intervals(file) for _, file in trainers)) > 0)  # they run side by side
    timers = [start("measure") for _ in range(2)]
    assert [process.wait() for process, _ in timers] == [0, 0], "two train all the time, and they come in"
    for _, file in trainers:
        file.with_name(f"{file.name}.enough").touch()
    assert [process.wait() for process, _ in trainers] == [0, 0]
    trained, timed = [intervals(file) for _, file in trainers], [intervals(file) for _, file in timers]
    assert [len(one) for one in timed] == [5, 5] and overlap(*timed) == 0
    assert all(overlap(timer, trainer) == 0 for timer in timed for trainer in trained)


@pytest.mark.parametrize("how", ["hold_alone", "hold_shared"])
def test_a_killed_process_holds_nothing(start, how):
    process, file = start(how)
    wait_for(file)
    waiting, waits = start("hold_alone")
    time.sleep(0.5)
    assert not waits.exists()
    process.kill()
    process.wait()
    wait_for(waits)
    waiting.kill()
    waiting.wait()
    assert is_free(alone=True)


def test_killed_timer_opens_the_turnstile(start):
    _, file = start("hold_shared")
    wait_for(file)
    gate = gpu._access_to(CPU).gate
    waiting, waits = start("hold_alone")
    wait_until(gate.exclusive_wanted)
    assert not waits.exists()
    waiting.kill()
    waiting.wait()
    assert is_free(alone=False), "with the other one that shares"


# One process and its modes.


def mode() -> str | None:
    return gpu._access_to(CPU).mode


def test_blocks_inside_each_other(start):
    with share_gpu(CPU):
        with share_gpu(CPU), exclusive(CPU), exclusive(CPU), share_gpu(CPU), release_gpu(CPU):
            assert mode() == "exclusive"
        assert mode() == "shared"
        with release_gpu(CPU):
            assert mode() is None
            with share_gpu(CPU):
                assert mode() == "shared"
            assert mode() is None
        with pytest.raises(KeyError), exclusive(CPU):
            raise KeyError
        assert mode() == "shared"
    assert mode() is None


def test_folder_without_locks_warns(start, tmp_path, caplog):
    (tmp_path / "locks").write_text("no folder")
    with exclusive(CPU):
        pass
    with share_gpu(CPU):
        yield_gpu(CPU)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "no lock for this GPU, so that other processes may disturb its timings"
    ]


def test_training_gives_way(start, tmp_path, monkeypatch):
    """A timer comes while the first batch of digits is trained on, and stays until the training says that it waits."""
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
                _, self.held = start("hold_alone")
                wait_until(gpu._access_to(CPU).gate.exclusive_wanted)
                assert mode() == "shared" and not self.held.exists()

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 1:
                assert mode() == "shared" and self.held.exists()

    def tell_and_end(line: str) -> None:
        tell(line)
        comes.held.with_name(f"{comes.held.name}.enough").touch()

    comes, tell = TimerComes(), gpu.log.info
    monkeypatch.setattr(gpu, "TELL_AFTER_S", 0.05)
    monkeypatch.setattr(gpu.log, "info", tell_and_end)
    net = Net(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    data = Digits().data_module(batch_size=32, seed=0, cache_dir=tmp_path)
    recipe = Recipe(epochs=1)
    task = ImageClassification(net, num_classes=10, optimization=Optimization(recipe, lr=0.01, total_steps=2))
    trainer = TrainerSettings(accelerator="cpu", limit_batches=2, progress_bar=False)
    began = time.perf_counter()
    with record_spans() as spans:
        trained = fit(
            task,
            data,
            epochs=1,
            recipe=recipe,
            trainer=trainer,
            loggers=[],
            directory=tmp_path,
            callbacks=(comes,),
            stage="dense",
        )
    waited = sum(span.seconds for span in spans if span.kind == WAITING)
    assert waited > 0.05 and trained.steps == 2
    assert trained.seconds <= time.perf_counter() - began - waited + 0.01
    assert {(span.kind, span.detail) for span in spans} == {(TRAINING, "dense"), (WAITING, "")} and mode() is None
