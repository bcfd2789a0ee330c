"""What the compiler says of each CUDA source, kept in compiled.json: to compile them all takes minutes.

    python tests/kernels/compiled.py    # with nvcc: compiles what has changed and writes the file

A record counts for the same sources and flags, and for the compiler that made it.
"""

import ctypes
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from sparsefront_kernels import cuda_library

FILE = Path(__file__).with_suffix(".json")
SEVERAL_FUNCTIONS = {
    "blocked_training_sm90": ("blocked_gradient_sm90", "blocked_pack_sm90")
}  # others are called as their file


@dataclass(frozen=True)
class Compiled:
    """A library, as the compiler and the loader have it.

    Args:
        sources: hash of all that the source may include, and of the flags.
        compiler: its release.
        targets: architectures that kernels are compiled for.
        kernels: how many.
        spilled: bytes of a thread's registers that overflow into memory, the most of all kernels.
        warnings: of products that wait for one another, and of registers that are not moved to others.
        functions: that Python calls, and that the opened library has.
    """

    sources: str
    compiler: str
    targets: list[str]
    kernels: int
    spilled: int
    warnings: list[str]
    functions: list[str]


def called(name: str) -> list[str]:
    """Functions of a library that Python calls."""
    return [f"sparsefront_{function}" for function in SEVERAL_FUNCTIONS.get(name, (name,))]


def compile_anew(name: str) -> Compiled:
    """Build a library, unless the cache has it, open it, and read what the compiler said."""
    path = cuda_library.build(name)
    said = (path.parent / cuda_library.LOG).read_text()
    library = ctypes.CDLL(str(path))
    targets = re.findall(r"Compiling entry function .* for '(\w+)'", said)
    spilled = [int(stores) for stores in re.findall(r"(\d+) bytes spill stores", said)]
    return Compiled(
        digest(name),
        compiler_release(),
        sorted(set(targets)),
        len(targets),
        max(spilled, default=-1),
        re.findall(r".*serialized.*|.*setmaxnreg.*ignored.*", said),
        [function for function in called(name) if hasattr(library, function)],
    )


def recorded() -> dict[str, Compiled]:
    return {name: Compiled(**record) for name, record in json.loads(FILE.read_text()).items()}


def of_present_sources() -> dict[str, Compiled]:
    """Of each source: its record, or the result of a compilation where there is none for it and for the compiler that is
    here. Sources that lack both a record and a compiler are left out.
    """
    records = {name: record for name, record in recorded().items() if record.sources == digest(name)}
    if cuda_library._missing_tool() is None:
        records = {name: record for name, record in records.items() if record.compiler == compiler_release()}
        changed = [name for name in cuda_library.SOURCES if name not in records]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            records |= dict(zip(changed, pool.map(compile_anew, changed)))
    return records


def digest(name: str) -> str:
    return cuda_library._digest(cuda_library.SOURCES[name], *cuda_library.FLAGS)


def compiler_release() -> str:
    nvcc = cuda_library.compiler()
    assert nvcc is not None
    found = re.search("release (.*)", cuda_library._compiler_says(nvcc))
    return found[1] if found else "unknown"


def main() -> int:
    """Returns 0."""
    if reason := cuda_library._missing_tool():
        sys.exit(f"compiled.py {reason}")
    records = of_present_sources()
    content = {name: asdict(records[name]) for name in cuda_library.SOURCES}
    FILE.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
