"""Damage each file of a small finished sweep in seven ways; count tracebacks, hangs and hidden results of every command.

    python -m experiments.faults.corrupt_files FOLDER [--only TEXT] [--commands NAME ...] [--csv FILE] [--again] [--every N]

FOLDER/finished holds the sweep: a multirun of two patterns and a dense run, their cache, and the output of compare.py. Each case
is a copy with one damaged file or folder; a command runs there in a child forked after all imports. Files with the same role are
damaged once: those of the first point and of its stages. Prints the failing cases and a table kind x command; writes one line per
case and command. --again keeps FOLDER/finished.
corrupt_files.csv covers every second case of the results with compare.py, all cases of the cache with the cache's commands, and
every eighth case of both with load_run, verify and run.py (--every 8).
"""

import argparse
import io
import json
import os
import random
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a forked child has no other threads
os.environ["WANDB_MODE"] = "offline"

import torch

import sparsefront as sf
from experiments.harness.rows import write
from experiments.harness.runs import ROOT
from sparsefront import runs  # noqa: F401  (registers the resolvers)
from sparsefront.__main__ import compare
from sparsefront.artifacts.store import RECORD
from sparsefront.cache.__main__ import main as cache
from sparsefront.errors import InvalidSetting
from sparsefront.results import plots  # noqa: F401  (imported before the fork)
from sparsefront.results.page import comparison  # noqa: F401
from sparsefront.verify.__main__ import main as verify

TIMEOUT_S = 60
ADDRESS_SPACE_BYTES = 6 * 2**30  # beyond the imports
TINY = [
    "debug=tiny",
    "model.dim=64",
    "model.depth=1",
    "trainer=cpu",
    "measure.device=cpu",
    "logger=none",
    "sparsity=0.5",
]
SWEPT = ["pattern=n_m,tile_wise", "granularity=16"]
FIRST = ["pattern=n_m", "granularity=16"]
CACHE, RESULTS = ".cache/sparsefront", "results"
TEXTS = (".json", ".jsonl", ".yaml", ".csv", ".txt", ".log", ".html")
LAUGHS = "\n".join(["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))])
NUMBER = re.compile(r"(?<=: )(?!9\b)-?\d[\d.e+-]*")  # except the schema version
STRING = re.compile(r'(?<=: ")|(?<=,)(?=[a-z])')  # the start of a string or of a table cell
OUTCOMES = ("ok", "refused", "traceback", "hang", "crash", "hidden")


@dataclass(frozen=True)
class Found:
    """Result of one command in one case: an outcome of OUTCOMES, and its last line of output."""

    file: str
    kind: str
    command: str
    outcome: str
    said: str


Damage = Callable[[str, bytes], bytes]


def _numbers(value: str) -> Damage:
    return lambda suffix, content: NUMBER.sub(value, _undigested(content)).encode()


def _strings(suffix: str, content: bytes) -> bytes:
    """An escape sequence, a newline, a null and math text in every string."""
    hostile = r"\u001b[2J\n\u0000$\\frac{$" if suffix == ".json" else "\x1b[2J\r\x00$\\frac{$"
    return STRING.sub(lambda _: hostile, _undigested(content)).encode()


def _undigested(content: bytes) -> str:
    """Remove the digest, as in old versions, so that the rest is read too."""
    return re.sub(r'(?<="record_sha256": )"\w+"', "null", content.decode())


def _flip_bits(suffix: str, content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x80]) + content[middle + 1 :] if content else b"\x80"


def _other_encoding(suffix: str, content: bytes) -> bytes:
    return content.decode(errors="replace").encode("utf-16") if suffix in TEXTS else b"\xff\xfe" + content


def _zip_bomb(suffix: str, content: bytes) -> bytes:
    """An archive of arrays whose headers claim a petabyte."""
    damaged = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (125000000000000,), }"
            header += b" " * (117 - len(header)) + b"\n"
            new.writestr(name, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(2**27))
    return damaged.getvalue()


KINDS: dict[str, Damage] = {
    "empty": lambda suffix, content: b"",
    "half": lambda suffix, content: content[: len(content) // 2],
    "flipped": _flip_bits,
    "random": lambda suffix, content: random.Random(len(content)).randbytes(len(content)),
    "encoding": _other_encoding,
}
HOSTILE: dict[str, Damage] = {
    "deep": lambda suffix, content: b"[" * 100_000 + b"]" * 100_000,
    "not_a_number": _numbers("NaN"),
    "huge_number": _numbers("9" * 400),
    "large_number": _numbers("9" * 18),
    "negative_number": _numbers("-1"),
    "null": lambda suffix, content: re.sub(r'(?<=: )("[^"]*"|-?\d[\d.e+-]*)', "null", content.decode()).encode(),
    "texts": _strings,
    "half_characters": lambda suffix, content: STRING.sub(lambda _: r"\ud800", _undigested(content)).encode(),
    "list": lambda suffix, content: b"[]",
    "aliases": lambda suffix, content: LAUGHS.encode(),
    "long_line": lambda suffix, content: bytes(10_000_000),
    "zip_bomb": _zip_bomb,
    "header": lambda suffix, content: (2**60).to_bytes(8, "little") + content[8:],
}
HOSTILE_TO = {
    ".json": "deep not_a_number huge_number large_number negative_number null texts half_characters list",
    ".jsonl": "deep not_a_number",
    ".yaml": "aliases deep null list",
    ".csv": "texts long_line",
    ".txt": "texts long_line",
    ".npz": "zip_bomb",
    ".safetensors": "header",
}


def _replace(damage: Damage) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(damage(path.suffix, path.read_bytes())) and None


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("a file\n", encoding="utf-8")


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def cases(finished: Path) -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    """(file, kind, damage) for the files of the first point, of its parent folders and of its stages."""
    for path in _damaged(finished):
        name = path.relative_to(finished).as_posix()
        if path.is_dir() and not path.is_symlink():
            yield name, "folder", _file_instead
            continue
        yield name, "folder", _folder
        if path.is_symlink():
            yield name, "hostile: loop", _link_to_itself
            continue
        yield from ((name, kind, _replace(damage)) for kind, damage in KINDS.items())
        for kind in HOSTILE_TO.get(path.suffix, "long_line").split():
            yield name, f"hostile: {kind}", _replace(HOSTILE[kind])


def _damaged(finished: Path) -> list[Path]:
    point = first_point(finished)
    folders = [point, point / ".hydra", *_stages(finished / CACHE, point)]
    inside = [path for folder in folders for path in sorted(folder.iterdir())]
    above = [
        path for folder in (point.parent, finished / RESULTS, finished / CACHE) for path in sorted(folder.iterdir())
    ]
    files = [*(path for path in above if path.is_file()), finished / CACHE / "data" / "digests.json"]
    return list(dict.fromkeys([*folders, point.parent, finished / RESULTS / "compare", *files, *inside]))


def _stages(cache_dir: Path, point: Path) -> list[Path]:
    """The stages of a point: its result names the last ones, and each stage names its inputs."""
    run_id = json.loads((point / "row.json").read_text(encoding="utf-8"))["identity"]["run_id"]
    records = {record.parent: record.read_text(encoding="utf-8") for record in sorted(cache_dir.glob(f"*/*/{RECORD}"))}
    last = [
        folder
        for folder, text in records.items()
        if folder.name == run_id or folder.parent.name == "result" and run_id in text
    ]
    last.append((point / "checkpoint").resolve())
    used = {key for folder in last for key in json.loads(records[folder])["used"]}
    return [folder for folder in records if folder in last or folder.name in used]


def first_point(folder: Path) -> Path:
    """The first point of the sweep."""
    return next(iter(sorted((folder / RESULTS).glob("*/*_n_m_*/"))))


# Each command runs in a child whose working directory is the case's folder.


def _load_run() -> int:
    opened = sf.load_run(first_point(Path()))
    _ = opened.record, opened.masks, opened.network
    return 0


def _run_again() -> int:
    sys.argv = ["run.py", *TINY, *FIRST]
    runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    return 0


COMMANDS: dict[str, Callable[[], int | None]] = {
    "compare": lambda: compare([RESULTS]),
    "rebuild": lambda: compare(["--rebuild", RESULTS]),
    "cache": lambda: cache([]),
    "cache check": lambda: cache(["check"]),
    "verify": lambda: verify([str(first_point(Path()) / "row.json")]),
    "load_run": _load_run,
    "run": _run_again,
}


def call(name: str, folder: Path) -> tuple[str, str]:
    """Run a command in a child; return (outcome, last line of output)."""
    said = folder / ".said"
    child = os.fork()
    if child == 0:
        _in_child(COMMANDS[name], folder, said)
    deadline = time.monotonic() + TIMEOUT_S
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hang", f"after {TIMEOUT_S} s"
        time.sleep(0.005)
    text = said.read_text(errors="replace", encoding="utf-8").replace(f"{folder}/", "").replace(f"{ROOT}/", "")
    last = text.strip().rpartition("\n")[2][:200]
    if os.WIFSIGNALED(ended[1]):
        return "crash", f"{signal.Signals(os.WTERMSIG(ended[1])).name}: {last}"
    if "Traceback (most recent call last)" in text or os.WEXITSTATUS(ended[1]) == 70:
        return "traceback", last
    return ("refused" if os.WEXITSTATUS(ended[1]) else "ok"), last


def _in_child(command: Callable[[], int | None], folder: Path, said: Path) -> None:
    os.chdir(folder)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + ADDRESS_SPACE_BYTES,) * 2)
    status = 70
    try:
        status = command() or 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            print(error.code)
            status = 70 if "\n" in error.code.strip() else 1
    except InvalidSetting as error:
        print(f"{type(error).__name__}: {error}")
        status = 70 if "\n" in str(error) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(status)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")


def hidden(name: str, folder: Path, others: Iterable[str]) -> str | None:
    """The first undamaged run that a command no longer shows, in its files or on the terminal."""
    written = {"compare": "results/compare/compare.html", "rebuild": "results/rows.csv", "cache": ".said"}.get(name)
    if written is None:
        return None
    text = "".join(
        (folder / page).read_text(errors="replace", encoding="utf-8")
        for page in (written, ".said")
        if (folder / page).is_file()
    )
    return next((other for other in others if other not in text), None)


def finish(folder: Path) -> None:
    """Run the sweep and the dense run, and compare them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = [sys.executable, str(ROOT / "run.py")]
    for command in (
        [*python, "-m", *TINY, *SWEPT],
        [*python, *TINY, "pattern=dense"],
        [sys.executable, str(ROOT / "compare.py")],
    ):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def examine(finished: Path, file: str, kind: str, damage: Callable, commands: Iterable[str]) -> Iterator[Found]:
    """Run the commands; each that writes gets its own copy, so that none repairs what the next one reads."""
    case, others = finished.with_name("case"), _other_runs(finished)
    for name in commands:
        if file.startswith(CACHE) and name in ("compare", "rebuild"):
            continue  # they do not read the cache
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(finished, case, symlinks=True)
        (case / RESULTS / "compare" / "compare.html").unlink(missing_ok=True)  # an old page would show the other runs
        path = case / file
        damage(path)
        try:
            first_point(case)
        except StopIteration:
            continue  # the sweep's folder is gone, so the command would get no path
        outcome, said = call(name, case)
        if outcome == "ok" or (outcome, name) == ("refused", "compare"):
            missing = hidden(name, case, others[name == "cache"])
            outcome, said = ("hidden", f"{missing} is not shown; {said}") if missing else (outcome, said)
        yield Found(file, kind, name, outcome, said)


def _other_runs(finished: Path) -> dict[bool, list[str]]:
    """Undamaged runs: their ids (False) and folder names (True)."""
    first = first_point(finished)
    others = [row for row in sorted((finished / RESULTS).rglob("row.json")) if row.parent != first]
    ids = [json.loads(row.read_text(encoding="utf-8"))["identity"]["run_id"] for row in others]
    return {False: ids, True: [row.parent.name[:20] for row in others]}


def print_table(found: list[Found], commands: Iterable[str]) -> None:
    """Print kind x command: tracebacks, hangs, crashes and hidden results out of all tries."""
    kinds = list(dict.fromkeys(one.kind.partition(":")[0] for one in found))
    print(f"\n{'damage':10s}", *(f"{name:>12s}" for name in commands))
    for kind in [*kinds, "all"]:
        cells = []
        for name in commands:
            tried = [one for one in found if one.command == name and kind in ("all", one.kind.partition(":")[0])]
            failed = [one for one in tried if one.outcome not in ("ok", "refused")]
            cells.append(f"{f'{len(failed)} of {len(tried)}':>12s}")
        print(f"{kind:10s}", *cells)
    counts = {outcome: sum(one.outcome == outcome for one in found) for outcome in OUTCOMES}
    print(f"\n{len(found)} tried: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="cases whose `file kind` contains this")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("--again", action="store_true", help="take the finished sweep that is in the folder")
    parser.add_argument("--every", type=int, default=1, help="one case of so many: all take an hour on one core")
    options = parser.parse_args()
    finished = options.folder.resolve() / "finished"
    if not options.again or not finished.is_dir():
        finish(finished)
    torch.set_num_threads(1)
    findings: list[Found] = []
    chosen = [case for case in cases(finished) if options.only in f"{case[0]} {case[1]}"]
    for file, kind, damage in chosen[:: options.every]:
        for one in examine(finished, file, kind, damage, options.commands):
            findings.append(one)
            if one.outcome not in ("ok", "refused"):
                print(f"{one.outcome}: {one.file}, {one.kind}, {one.command}: {one.said}", flush=True)
    print_table(findings, options.commands)
    write(options.csv, list(Found.__dataclass_fields__), map(asdict, findings))
    return 0 if all(one.outcome in ("ok", "refused") for one in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
