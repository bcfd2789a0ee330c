"""save and load: a pruned network in a folder, and back."""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sparsefront as sf
from sparsefront.pruning.mask_spec import load_masks, pack, save_masks
from sparsefront.pruning.masks import Masks

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "pattern",
    [sf.patterns.TileWise(4), sf.patterns.NM(2, 4, permutation="search"), sf.patterns.ShuffledBlock(4)],
    ids=lambda pattern: pattern.name,
)
def test_network_comes_back_with_its_masks(cnn, tmp_path, pattern):
    masks = sf.prune(cnn, pattern, 0.5, example_inputs=(IMAGES,), tell=len)
    sf.save(tmp_path / "pruned", cnn, masks)
    other = copy.deepcopy(cnn)
    for parameter in other.parameters():
        nn.init.ones_(parameter)
    loaded = sf.load(tmp_path / "pruned", other)
    assert all(torch.equal(value, cnn.state_dict()[name]) for name, value in other.state_dict().items())
    assert loaded.keys() == masks.keys() and all(torch.equal(loaded[name], masks[name]) for name in masks)
    assert loaded.pruning.pattern == pattern and loaded.pruning.sparsity == 0.5 and loaded.ignored == masks.ignored
    report, again = sf.swap(cnn, masks, (IMAGES,)), sf.swap(other, loaded, (IMAGES,))
    assert report.to_json() == again.to_json()
    assert torch.equal(cnn(IMAGES), other(IMAGES))


OWN = (
    "from dataclasses import dataclass\n"
    "from sparsefront.patterns.element_wise import ElementWise\n\n"
    "@dataclass(frozen=True)\nclass Own(ElementWise):\n    name = 'own'\n"
)


def test_own_pattern_needs_trust(own_modules, cnn, tmp_path):
    own_modules({"own_pattern.py": OWN})
    from own_pattern import Own

    sf.save(tmp_path, cnn, sf.prune(cnn, Own(), 0.5, layers="mlp", tell=len))
    assert sf.load(tmp_path, cnn, trust=["own_pattern"]).pruning.pattern == Own()
    for trust in ([], ["own"], ["own_pattern.inner"], ["pattern"]):
        with pytest.raises(sf.InvalidSetting, match=r'own_pattern.Own: is no class of .*: trust=\["own_pattern"\] imp'):
            sf.load(tmp_path, cnn, trust=trust)
    with pytest.raises(sf.InvalidSetting, match=r'trust=own_pattern: is a list of packages, such as \["mylab'):
        sf.load(tmp_path, cnn, trust="own_pattern")


def calls(marker: Path) -> dict[str, dict]:
    """Records that run a command, or import a module that does, wherever their class is called without a look at it."""
    touch = f"touch {marker}"
    return {
        "a function": {"_target_": "os.system", "command": touch},
        "a process": {"_target_": "subprocess.Popen", "args": touch, "shell": True},
        "a builtin": {"_target_": "builtins.exec", "source": f"open({str(marker)!r}, 'w')"},
        "through our modules": {"_target_": "sparsefront.artifacts.durable.os.system", "command": touch},
        "our own function": {"_target_": "sparsefront.artifacts.durable.whole_file", "path": str(marker)},
        "a module's import": {"_target_": "own_trap.Own"},
        "a candidate": {"_target_": "sparsefront.patterns.mixed.Mixed", "candidates": [{"_target_": "own_trap.Own"}]},
        "no name": {"_target_": ["os.system"], "command": touch},
        "none": {"command": touch},
    }


def trap(marker: Path) -> dict[str, str]:
    return {"own_trap.py": f"open({str(marker)!r}, 'w').close()\n{OWN}"}


@pytest.mark.parametrize("trust", [[], ["os", "subprocess", "builtins", "own"]], ids=["nobody", "the wrong ones"])
@pytest.mark.parametrize("record", calls(Path("marker")))
def test_a_manifest_runs_nothing(own_modules, cnn, tmp_path, record, trust):
    """Not even where what it names is trusted: what is no pattern is never called."""
    marker = tmp_path / "ran"
    own_modules(trap(marker))
    sf.save(tmp_path / "pruned", cnn, sf.prune(cnn, "n_m", 0.5, layers="mlp", tell=len))
    before, file = copy.deepcopy(cnn.state_dict()), tmp_path / "pruned" / "manifest.json"
    named = calls(marker)[record]
    parameters = {key: value for key, value in named.items() if key != "_target_"}
    edited = {"pattern_class": named.get("_target_", "os.system"), "pattern_parameters": parameters}
    for pattern in ({}, {"pattern": "mixed", "pattern_class": None, "pattern_parameters": {"candidates": [named]}}):
        file.write_text(json.dumps(json.loads(file.read_text()) | edited | pattern))
        with pytest.raises(sf.InvalidSetting, match="^folder="):
            sf.load(tmp_path / "pruned", cnn, trust=trust)
    assert not marker.exists()
    assert all(torch.equal(value, before[name]) for name, value in cnn.state_dict().items())


def damaged(folder: Path) -> dict[str, object]:
    """What may have become of each file of an export: name -> a function that makes it so."""
    return {
        "empty": lambda file: file.write_bytes(b""),
        "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        "other bytes": lambda file: file.write_bytes(bytes(range(256)) * 8),
        "a list": lambda file: file.write_text("[1]"),
        "deep": lambda file: file.write_text("[" * 10**5),
        "not a number": lambda file: file.write_text('{"layers": NaN}'),
        "a folder": lambda file: (file.unlink(), file.mkdir()),
        "gone": lambda file: file.unlink(),
    }


FILES = ("model.safetensors", "masks.safetensors", "manifest.json", "layer_sparsities.json", "permutations.safetensors")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", damaged(Path()))
def test_a_damaged_export_is_one_line(cnn, tmp_path, name, how):
    sf.save(tmp_path, cnn, sf.prune(cnn, "n_m", 0.5, layers="mlp", tell=len))
    damaged(tmp_path)[how](tmp_path / name)
    with pytest.raises(sf.InvalidSetting, match=f"^folder={tmp_path}: is (a damaged|not an) export: .+") as found:
        sf.load(tmp_path, cnn)
    assert "\n" not in str(found.value)


def test_masks_and_orders_that_misfit(cnn, tmp_path):
    sf.save(tmp_path, cnn, sf.prune(cnn, "n_m", 0.5, layers="mlp", tell=len))
    mask = load_masks(tmp_path / "masks.safetensors")["mlp"]
    save_masks({"mlp": mask[:2]}, tmp_path / "masks.safetensors")
    with pytest.raises(sf.InvalidSetting, match=r"is a damaged export: the mask of mlp is \[2, "):
        sf.load(tmp_path, cnn)
    save_file({"mlp": pack(mask)}, tmp_path / "masks.safetensors", metadata={"shapes": '{"mlp": [1000000, 1000000]}'})
    with pytest.raises(sf.InvalidSetting, match=r"a mask of shape \[1000000, 1000000\] is not \d+ bytes"):
        sf.load(tmp_path, cnn)
    save_masks({"mlp": mask}, tmp_path / "masks.safetensors")
    save_file({"mlp.inputs": torch.tensor([0, 0, 1])}, tmp_path / "permutations.safetensors")
    with pytest.raises(sf.InvalidSetting, match="holds mlp.inputs, in which an index is missing"):
        sf.load(tmp_path, cnn)


def entries(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def two_networks(cnn: nn.Module) -> list[tuple[nn.Module, Masks]]:
    other = copy.deepcopy(cnn)
    with torch.no_grad():
        other.mlp.weight.normal_(generator=torch.Generator().manual_seed(1))
    return [(net, sf.prune(net, "n_m", 0.5, layers="mlp", tell=len)) for net in (cnn, other)]


@pytest.mark.parametrize(
    ("beside", "file"),
    [
        *(("nothing", file) for file in ("model.safetensors", "masks.safetensors", "layer_sparsities.json")),
        *((beside, "saved.json") for beside in ("nothing", "a file", "a folder", "the working directory")),
    ],
)
def test_failed_save_leaves_the_old_one(cnn, tmp_path, monkeypatch, beside, file):
    (first, masks), (second, others) = two_networks(cnn)
    folder = tmp_path / "pruned"
    sf.save(folder, first, masks)
    if beside == "a file":
        (folder / "notes.txt").write_text("mine")
    if beside == "a folder":
        (folder / "logs").mkdir()
        (folder / "logs" / "notes.txt").write_text("mine")
    if beside == "the working directory":
        monkeypatch.chdir(folder)
    before = entries(folder)
    with monkeypatch.context() as full:
        fail_at(full, file)
        with pytest.raises(OSError, match="No space left"):
            sf.save(folder, second, others)
    assert entries(folder) == before and [path.name for path in tmp_path.iterdir()] == ["pruned"]
    sf.save("." if beside == "the working directory" else folder, second, others)
    sf.load(folder, first)
    assert torch.equal(first.mlp.weight, second.mlp.weight)
    kept = {"a file": folder / "notes.txt", "a folder": folder / "logs" / "notes.txt"}.get(beside)
    assert kept is None or kept.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["pruned"]
    assert not any(".partial-" in path.name for path in folder.iterdir())


def test_save_leaves_files_of_another_save(cnn, tmp_path):
    (net, masks), _ = two_networks(cnn)
    for folder, young, old in (
        (tmp_path, ".partial-young", ".partial-old"),
        (tmp_path / "a[1]", ".partial-0-b", ".partial-0-a[1]"),
    ):
        for name in (young, old):
            (tmp_path / name).mkdir()
            os.utime(tmp_path / name, (0, 0) if name in (old, ".partial-0-b") else None)
        sf.save(folder, net, masks)
        assert (tmp_path / young).is_dir() and not (tmp_path / old).exists()


KILLED_SAVE = """
import os, signal, sys
import torch
import sparsefront as sf

net = torch.nn.Sequential(torch.nn.Linear(16, 16))
masks = sf.prune(net, "n_m", 0.5, layers=["0"], tell=len)
moves = []
def move(source, target, real=getattr(os, sys.argv[2])):
    if moves:
        os.kill(os.getpid(), signal.SIGKILL)
    moves.append(real(source, target)) if sys.argv[2] == "replace" else os.kill(os.getpid(), signal.SIGKILL)
setattr(os, sys.argv[2], move)
sf.save(sys.argv[1], net, masks)
"""


def test_killed_save_leaves_no_half_folder(tmp_path):
    folder, net = tmp_path / "pruned", nn.Sequential(nn.Linear(16, 16))
    masks = sf.prune(net, "n_m", 0.5, layers=["0"], tell=len)

    def killed(how: str) -> None:
        assert subprocess.run([sys.executable, "-c", KILLED_SAVE, folder, how]).returncode == -signal.SIGKILL

    killed("rename")
    assert not folder.exists() and len(list(tmp_path.iterdir())) == 1
    sf.save(folder, net, masks)
    assert sf.load(folder, net).keys() == masks.keys()
    killed("replace")  # into a folder that exists, file by file
    with pytest.raises(sf.InvalidSetting, match="its files are not of one save"):
        sf.load(folder, net)
    sf.save(folder, net, masks)
    assert sf.load(folder, net).keys() == masks.keys()


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The disk is full where this file gets written."""
    import errno

    from sparsefront.artifacts import durable
    from sparsefront.export import checkpoint
    from sparsefront.pruning import mask_spec

    write, save = Path.write_text, durable.save_tensors

    def full(wanted, path, *args, **kwargs):
        if path.name == name:
            path.touch()
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return wanted(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", lambda path, *args, **kwargs: full(write, path, *args, **kwargs))
    for module in (checkpoint, mask_spec):
        monkeypatch.setattr(module, "save_tensors", lambda path, *args, **kwargs: full(save, path, *args, **kwargs))
