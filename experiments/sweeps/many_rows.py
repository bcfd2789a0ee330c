"""How much time and memory does `compare.py` need for thousands of runs?

    python -m experiments.sweeps.many_rows FOLDER [--rows 5000]

Makes FOLDER/results with a row.json per run (as published, with other names, seeds, sparsities and numbers, so that they are of
as many kinds as a study's), compares them, and prints CPU seconds and peak memory, of all processes.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from sparsefront.artifacts.bounded_files import MOST_TEXT_BYTES
from sparsefront.results.packed import read_text_in
from sparsefront.results.record import Result, record_digest

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "experiments" / "records" / "uniform_mt"
LARGEST_RECORD = 20_000  # bytes, as most runs have
SPARSITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9)
SEEDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the rows are made")
    parser.add_argument("--rows", type=int, default=5000)
    arguments = parser.parse_args()
    make_rows(arguments.folder / "results", arguments.rows)
    print(json.dumps(measure_comparison(arguments.folder), indent=2))
    return 0


def make_rows(folder: Path, count: int) -> None:
    """Write row.json of `count` runs into subfolders, the same at each call."""
    records = [read_text_in(file, "row.json", max_bytes=MOST_TEXT_BYTES) for file in sorted(PUBLISHED.glob("*.zip"))]
    published = [Result.from_json(text) for text in records if len(text) < LARGEST_RECORD]
    source = random.Random(0)
    for number in range(count):
        candidate, seed = divmod(number, SEEDS)
        setting, place = divmod(candidate, len(published) * len(SPARSITIES))
        first, sparsity = published[place // len(SPARSITIES)], SPARSITIES[place % len(SPARSITIES)]
        result = first.with_values(
            {
                "run_id": f"run-{number}",
                "seed": seed,
                "recovery_seed": seed,
                "sparsity_target": sparsity,
                "sparsity_achieved": sparsity,
                "recovery_parameters": first.choice.recovery_parameters | {"lr": 1e-3 * (setting + 1)},
                **_other_numbers(first, source),
            }
        )
        content = {group: vars(fields) for group, fields in vars(result).items()}
        result = replace(result, identity=replace(result.identity, record_sha256=record_digest(content)))
        place_of_run = folder / str(number // 100) / str(number)
        place_of_run.mkdir(parents=True, exist_ok=True)
        (place_of_run / "row.json").write_text(result.to_json(), encoding="utf-8")


def _other_numbers(first: Result, source: random.Random) -> dict[str, float]:
    """Other qualities and a speedup with its interval."""
    speedup = 1 + source.random()
    held = {name: getattr(first.quality, name) for name in ("sparse", "masked", "val_sparse", "val_masked")}
    numbers = {name: value * (1 - 0.02 * source.random()) for name, value in held.items() if value is not None}
    return numbers | {"speedup": speedup, "speedup_low": speedup - 0.02, "speedup_high": speedup + 0.02}


def measure_comparison(folder: Path) -> dict[str, float]:
    """CPU seconds and the largest resident memory in GB of `compare.py` with its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, ROOT / "compare.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": round(seconds, 1), "peak_gb": round(after.ru_maxrss / 2**20, 3)}


if __name__ == "__main__":
    sys.exit(main())
