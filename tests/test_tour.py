"""docs/tour.md names the files of the main job: they are there, are few, and hold the way from the command to the training."""

import re
import sys
from pathlib import Path

import pytorch_lightning as pl
from quick_settings import QUICK

from sparsefront.pipeline import run_experiment

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tour.md").read_text()
TOUR = re.findall(r"^\| \d+ \| `([\w/.]+)` \|", PAGE, flags=re.MULTILINE)


def test_the_files_are_there_and_few():
    assert len(TOUR) == len(set(TOUR)) <= 25
    assert sum(len((ROOT / file).read_text().splitlines()) for file in TOUR) <= 6200


def test_each_place_to_look_for_is_there():
    named = re.findall(r"`((?:src|conf|kernels|docs)/[\w/.]*)`", PAGE)
    assert named and all((ROOT / name).exists() for name in named), named


def test_the_way_to_the_training_is_on_the_tour(run, monkeypatch):
    """Of every function on the stack when Lightning begins to train; decorators of progress bars apart."""
    ways: list[set[str]] = []

    def fit(self, *arguments, **named):
        frame, files = sys._getframe(1), set()
        while frame is not None:
            files.add(frame.f_code.co_filename)
            frame = frame.f_back
        own = {Path(file).relative_to(ROOT).as_posix() for file in files if file.startswith(str(ROOT / "src"))}
        ways.append(own - {"src/sparsefront/progress.py", "src/sparsefront/gpu.py"})
        return real(self, *arguments, **named)

    real = pl.Trainer.fit
    monkeypatch.setattr(pl.Trainer, "fit", fit)
    run("pattern=tile_wise", "granularity=16")
    assert len(ways) == 2, "the dense network and its recovery"
    assert [sorted(way - set(TOUR)) for way in ways] == [[], []]


def test_few_calls_lead_from_the_command_to_the_training(composed, monkeypatch):
    """Functions of ours between the one that the command calls and Lightning's: what a reader of a training goes through."""
    calls: list[list[str]] = []

    def fit(self, *arguments, **named):
        own, frame = [], sys._getframe(1)
        while frame.f_code.co_name != "test_few_calls_lead_from_the_command_to_the_training":
            if frame.f_code.co_filename.startswith(str(ROOT / "src")):
                own.insert(0, frame.f_code.co_qualname)
            frame = frame.f_back
        calls.append(own)
        return real(self, *arguments, **named)

    real = pl.Trainer.fit
    monkeypatch.setattr(pl.Trainer, "fit", fit)
    run_experiment(composed("debug=tiny", *QUICK, "granularity=16", "stages=[dense,prune,recover]"))
    dense, recover = calls
    assert dense[0] == recover[0] == "run_experiment" and dense[-1] == recover[-1] == "fit"
    assert len(dense) <= 6, dense
    assert len(recover) <= 9, recover
