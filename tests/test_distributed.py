"""Training by several processes: the same masks on every rank, and no hang when one of them dies."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from waiting import wait_until
from whole_calls import on_every_rank

from sparsefront.errors import InvalidSetting
from sparsefront.training import ranks
from sparsefront.training.lightning_parts import Diverged
from sparsefront.training.ranks import RankFailed
from sparsefront.training.trainer import TrainerSettings

CPU = {"accelerator": "cpu", "progress_bar": False}
TWO = TrainerSettings(**CPU, devices=2, limit_batches=6)


@pytest.fixture(scope="module")
def trained(bodies, rank_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "STARTED_BY", rank_server)
        return on_every_rank(bodies.train_gradually, TWO, 2, trainer=TWO, folder=folder, loggers=[])["ends"]


@pytest.fixture(scope="module")
def alone(bodies, tmp_path_factory):
    """The same batches by one process: two of them accumulated where two ranks take one each."""
    one = TrainerSettings(**CPU, accumulate_grad_batches=2, limit_batches=12)
    folder = tmp_path_factory.mktemp("one")
    return on_every_rank(bodies.train_gradually, one, 2, trainer=one, folder=folder, loggers=[])["ends"][0]


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_ranks_exchange_and_clean_up(bodies, served_ranks, tmp_path):
    environment, threads = dict(os.environ), torch.get_num_threads()
    told = on_every_rank(bodies.statistics, trainer=TWO, folder=tmp_path, loggers=["logger"])["told"]
    assert [rank["index"] for rank in told] == [0, 1] and all(rank["count"] == 2 for rank in told)
    for rank in told:
        assert torch.equal(rank["total"], torch.full((2, 3), 3.0))
        assert torch.equal(rank["first"], torch.ones(2, 3)) and not rank["first_mask"].any()
        assert rank["held"].all(), "rank 0's mask, though rank 1 made another"
        assert torch.equal(rank["own"], torch.full((2, 3), rank["index"] + 1.0)), "what a rank had is left as it was"
    assert told[0]["loggers"] == ["logger"] and told[1]["loggers"] == []
    assert (tmp_path / "written.txt").read_text() == "0" and not told[1]["folder"].exists()
    assert dict(os.environ) == environment and torch.get_num_threads() == threads and not dist.is_initialized()


def test_ranks_end_alike(trained):
    first, second = trained
    assert equal(first["masks"], second["masks"])
    assert equal(first["weights"], second["weights"])
    assert first["reached"] == second["reached"] and len(first["reached"]) == 4
    for mask in first["masks"].values():
        assert (mask.unflatten(1, (-1, 4)).sum(dim=2) == 1).all()


def test_every_training_ends_alike(bodies, served_ranks, tmp_path):
    two = TrainerSettings(**CPU, devices=2, limit_batches=4)
    ends = on_every_rank(bodies.train_in_every_way, two, trainer=two, folder=tmp_path, loggers=[])
    assert len(ends) == 3
    for way, (first, second) in ends.items():
        assert equal(first["masks"], second["masks"]) and equal(first["weights"], second["weights"]), way
        for layer, mask in first["masks"].items():
            assert (mask.unflatten(1, (-1, 4)).sum(dim=2) == 1).all(), way
            assert torch.equal(first["weights"][f"{layer}.weight"] != 0, mask), way


def test_scores_equal_a_single_process(trained, alone):
    assert equal(trained[0]["untrained"], alone["untrained"])


def test_two_ranks_equal_two_accumulated_batches(trained, alone):
    """But for rounding."""
    assert trained[0]["steps"] == alone["steps"] == 6
    assert [step for step, _ in trained[0]["reached"]] == [step for step, _ in alone["reached"]]
    for name in ("1.weight", "3.weight", "5.weight"):
        torch.testing.assert_close(trained[0]["weights"][name], alone["weights"][name], rtol=1e-3, atol=1e-4)
    for name, mask in trained[0]["masks"].items():
        assert (mask == alone["masks"][name]).float().mean() > 0.99


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raises", RankFailed, r"rank 1 failed: ValueError: no room left(.|\n)*in fail"),
        ("killed", RankFailed, "rank 1 failed: it ended with exit code -9"),
        ("rank 0", KeyError, "rank 0's own"),
    ],
)
def test_failing_rank_ends_the_run(bodies, served_ranks, tmp_path, monkeypatch, how, error, message):
    if how == "rank 0":  # the other one has nothing to tell, however long it is waited for
        monkeypatch.setattr(ranks, "REPORT_WAIT_S", 0.5)
    with pytest.raises(error, match=message):
        on_every_rank(bodies.fail, how, trainer=TWO, folder=tmp_path, loggers=[])
    assert "LOCAL_RANK" not in os.environ and not dist.is_initialized()


@pytest.mark.parametrize(
    ("seconds", "error", "message"),
    [
        ("0.000001", RankFailed, "rank 1 did not start within 1e-06 s; SPARSEFRONT_START_SECONDS is the limit"),
        ("soon", InvalidSetting, "SPARSEFRONT_START_SECONDS=soon: must be a number of seconds greater than 0"),
    ],
)
def test_start_limit_comes_from_the_environment(bodies, served_ranks, tmp_path, monkeypatch, seconds, error, message):
    monkeypatch.setenv("SPARSEFRONT_START_SECONDS", seconds)
    with pytest.raises(error, match=message):
        on_every_rank(bodies.statistics, trainer=TWO, folder=tmp_path, loggers=[])


def test_all_ranks_stop_where_one_diverges(bodies, served_ranks, tmp_path):
    """With one line, and not as the failure of a process."""
    with pytest.raises(Diverged, match=r"^stage dense diverged: the loss is nan \(epoch 1 of 1, step 3, "):
        on_every_rank(bodies.diverge_on_one_rank, TWO, trainer=TWO, folder=tmp_path, loggers=[])
    assert "LOCAL_RANK" not in os.environ and not dist.is_initialized()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes where Linux lists them")
def test_no_rank_outlives_a_killed_run(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path; from process_bodies import TrainerSettings, wait_to_be_killed\n"
        "from sparsefront.training.ranks import other_ranks_running\n"
        "two = TrainerSettings(accelerator='cpu', devices=2)\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "if __name__ == '__main__':\n"
        "    with other_ranks_running(wait_to_be_killed, folder, trainer=two):\n"
        "        wait_to_be_killed(folder, folder, [])"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_until(lambda: all(file.exists() and file.read_text() for file in (tmp_path / "0", tmp_path / "1")), process)
    other = int((tmp_path / "1").read_text())
    process.kill()
    process.wait()
    wait_until(lambda: not _alive(other))


def _alive(pid: int) -> bool:
    """Not even as a zombie that was never waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_stages_train_on_two_processes(composed, served_ranks, tmp_path):
    """One after the other in this process, each with processes of its own."""
    from safetensors.torch import load_file

    from sparsefront.pipeline import run_experiment
    from sparsefront.pruning.mask_spec import load_masks

    run_experiment(
        composed(
            "debug=tiny",
            "trainer=cpu",
            "trainer.devices=2",
            "schedule=gradual",
            "schedule.updates=2",
            "pattern=n_m",
            "model.dim=64",
            "model.depth=1",
            "recipe.batch_size=16",
            "stages=[dense,prune,recover]",
        )  # fmt: skip
    )
    (folder,) = (entry for entry in (tmp_path / "cache" / "recover").iterdir() if entry.is_dir())
    weights = load_file(folder / "weights.safetensors")
    for layer, mask in load_masks(folder / "masks.safetensors").items():
        assert (mask.unflatten(1, (-1, 4)).sum(dim=2) == 1).all()
        assert torch.equal(weights[f"{layer}.weight"] != 0, mask), "and what is kept is trained"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_end_alike(bodies, tmp_path):
    """However they exchange gradients; what is rounded on the way changes what comes out."""
    two = TrainerSettings(accelerator="gpu", devices=2, precision="32-true", limit_batches=6, progress_bar=False)
    weights = []
    for hook in (None, "bf16_compress"):
        trainer = replace(two, ddp_comm_hook=hook)
        training = on_every_rank(bodies.train_gradually, trainer, 2, trainer=trainer, folder=tmp_path, loggers=[])
        first, second = training["ends"]
        assert equal(first["masks"], second["masks"]) and equal(first["weights"], second["weights"])
        weights.append(first["weights"])
    assert not equal(*weights)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_killed_gpu_rank_ends_the_run(bodies, tmp_path):
    two = TrainerSettings(accelerator="gpu", devices=2, progress_bar=False)
    with pytest.raises(RankFailed, match="rank 1 failed"):
        on_every_rank(bodies.fail, "killed", trainer=two, folder=tmp_path, loggers=[])
