"""How much faster is a sweep with two workers than with one?

    python -m experiments.sweeps.workers FOLDER [OVERRIDE ...]

24 points on digits, one thread a worker, timing excluded. The dense network is trained first, alone, and shared by all; then the
same points with one worker, with two of joblib and with two of Ray, each into a store of its own that holds the dense network.
Writes FOLDER/workers.json: seconds, and the ratio to one worker. Wants two cores that nothing else uses.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from experiments.harness import runs

POINTS = ["sparsity=0.5,0.6,0.7,0.75,0.8,0.9", "pattern=element_wise,n_m,vector_wise,block_wise"]
QUIET = ["granularity=8", *runs.ON_CPU]
# As `stages` without swap: the accuracy of the masks, no sparse kernels to time. The dense times are taken once, and stored.
UNTIMED = ["stages=[dense,prune,recover,export]"]
LAUNCHERS = {
    "one": [],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "ray": [
        "hydra/launcher=ray",
        "hydra.launcher.ray.remote.num_gpus=0",
        "+hydra.launcher.ray.init.num_cpus=2",
        "+hydra.launcher.ray.init.include_dashboard=false",
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the runs and their stores")
    parser.add_argument("overrides", nargs="*", help="of run.py, for all points: trainer.limit_batches=2")
    arguments = parser.parse_args()
    folder, more = arguments.folder.absolute(), arguments.overrides
    _run(folder / "dense", ["stages=[dense]", *QUIET, *more])
    seconds = {}
    for name, launcher in LAUNCHERS.items():
        shutil.copytree(folder / "dense" / "cache", folder / name / "cache")
        start = time.perf_counter()
        _run(folder / name, ["-m", *launcher, *POINTS, *UNTIMED, *QUIET, *more])
        seconds[name] = round(time.perf_counter() - start, 1)
        assert len(list((folder / name / "cache" / "export").glob("*/determined_by.json"))) == 24, "24 points"
        assert len(list((folder / name / "cache" / "dense").glob("*/determined_by.json"))) == 1, "dense is trained once"
    found = {"seconds": seconds, "ratio": {name: round(value / seconds["one"], 3) for name, value in seconds.items()}}
    (folder / "workers.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 0 if max(found["ratio"]["joblib"], found["ratio"]["ray"]) <= 0.6 else 1


def _run(folder: Path, overrides: list[str]) -> None:
    if runs.start(folder, *overrides, environment=runs.ONE_THREAD).wait() != 0:
        raise SystemExit(f"a sweep failed:\n{runs.log_of(folder)}")


if __name__ == "__main__":
    sys.exit(main())
