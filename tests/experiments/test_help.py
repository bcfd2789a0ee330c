"""Every program of experiments/ answers --help, and starts nothing."""

import runpy
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
PROGRAMS = sorted(
    ".".join(("experiments", *file.relative_to(EXPERIMENTS).with_suffix("").parts))
    for file in EXPERIMENTS.rglob("*.py")
    if '__name__ == "__main__"' in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_help(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(program, run_name="__main__", alter_sys=False)
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
