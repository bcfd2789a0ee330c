"""Count how many of the one-line faults in seeded.csv the tests catch; run it before and after tests are shortened.

    python -m experiments.faults.seeded [--room ROOM]      writes the column `now`

room, file          the edited file
line, fault         text that is once in the file, and what replaces it
tests               the files under tests/ that could catch it
before, now         `caught`, `not caught`, or why neither: before tests were shortened, and at the last run

Each fault is applied alone to a copy of the tracked files, in which its tests then run until the first failure.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = HERE / "seeded.csv"
LIMIT_S = 180
PYTEST = ("-m", "pytest", "-x", "-q", "-m", "not gpu", "-p", "no:xdist", "-p", "no:cacheprovider")
VERDICTS = {0: "not caught", 1: "caught", 2: "caught"}  # by pytest's exit status; 2 = the test file could not be read


def copy_tracked(folder: Path) -> None:
    """Copy the tracked files and links, as they are in the working tree."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True, encoding="utf-8"
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name, follow_symlinks=False)


def run_tests(folder: Path, tests: str) -> str:
    """Run test files of a copy; returns `caught` if one fails."""
    paths = os.pathsep.join(str(folder / part) for part in ("src", "kernels", "."))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *PYTEST, *(f"tests/{name}" for name in tests.split())]
    try:
        status = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        return "caught"  # a hang shows too
    return VERDICTS.get(status, f"pytest ends with status {status}")


def try_fault(row: dict[str, str], folder: Path) -> str:
    """Apply one fault to a copy, run its tests and undo it."""
    file = folder / row["file"]
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    times = before.count(row["line"])
    if times != 1:
        return f"not applied: the line is there {times} times"
    file.write_text(before.replace(row["line"], row["fault"]), encoding="utf-8")
    try:
        return run_tests(folder, row["tests"])
    finally:
        file.write_text(before, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", help="only the faults of this room")
    parser.add_argument("--sound", action="store_true", help="only run all named tests without a fault")
    options = parser.parse_args()
    with TABLE.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    chosen = [row for row in rows if options.room in (None, row["room"])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tracked(folder)
        if options.sound:
            tests = " ".join(sorted({file for row in chosen for file in row["tests"].split()}))
            sys.exit(f"without a fault: {run_tests(folder, tests)}")
        for row in chosen:
            row["now"] = try_fault(row, folder)
            print(f"{row['now']:12} {row['room']:12} {row['file']}: {row['fault']}", flush=True)
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{sum(row['now'] == 'caught' for row in chosen)} of {len(chosen)} are caught")


if __name__ == "__main__":
    main()
