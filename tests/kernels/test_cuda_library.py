"""CUDA sources as libraries: what the compiler makes of each, when one is built, and what is said where one cannot be."""

import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess
from threading import Barrier
from types import SimpleNamespace

import compiled
import pytest
import torch
from forked_builder import forking_builder
from program_server import Program, ProgramServer
from sparsefront_kernels import Problem, build, cuda_library
from sparsefront_kernels.device_support import library_unsupported_reason
from waiting import wait_until


@pytest.fixture
def needs_tools():
    if reason := cuda_library._missing_tool():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def forking() -> Iterator[SimpleNamespace]:
    with forking_builder() as in_place_of_subprocess:
        yield in_place_of_subprocess


@pytest.fixture
def forked_builds(forking, monkeypatch) -> None:
    """Builds of this test need not import torch again."""
    monkeypatch.setattr(cuda_library, "subprocess", forking)


@pytest.fixture(scope="module")
def libraries(forking) -> dict[str, compiled.Compiled]:
    """What the compiler says of our sources, from the records of `compiled`; those without a record are compiled here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_library, "subprocess", forking)
        return compiled.of_present_sources()


@pytest.fixture
def library(name, libraries) -> compiled.Compiled:
    if name not in libraries:
        pytest.skip(f"{name} has changed, and its build {cuda_library._missing_tool()}")
    return libraries[name]


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """No library is built; sources are what a test writes there with `source`."""
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_library, "_failures", {})
    monkeypatch.setattr(cuda_library, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(cuda_library, "_toolchain_reason", lambda: None)
    cuda_library._warn_once.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """(name, text) -> a source of that name is known."""
    known: dict = {}
    for module in (cuda_library, build):
        monkeypatch.setattr(module, "SOURCES", known)

    def write(name: str, text: str) -> None:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.cu").write_text(text)
        known[name] = folder / f"{name}.cu"

    return write


ANSWER = 'extern "C" int answer() {{ return {}; }}'


# Bytes of a thread, at most. gathered_sm90_cluster: where blocks of a cluster add up, after the main loop. gathered_indexed: an
# address, before it.
MOST_SPILLED = {"gathered_sm90_cluster": 440, "gathered_indexed": 8, "gathered_small_m": 80, "n_m_small_m": 48}


@pytest.mark.parametrize("name", cuda_library.SOURCES)
class TestOurSources:
    """One compilation of each serves all of these."""

    def test_record_is_of_what_exists(self, name):
        record = compiled.recorded().get(name)
        assert record is not None and record.sources == compiled.digest(name), "run `python tests/kernels/compiled.py`"

    def test_is_compiled_for_hopper_alone(self, library):
        assert library.kernels > 0 and library.targets == ["sm_90a"]

    def test_no_product_waits_for_another(self, library):
        """The compiler warns where it makes tensor-core products wait for one another, or moves no registers to others."""
        assert library.warnings == []

    def test_spills_are_few(self, name, library):
        """Registers that overflow into memory are loaded again inside the main loop."""
        assert 0 <= library.spilled <= MOST_SPILLED.get(name, 0)

    def test_has_what_python_calls(self, name, library):
        assert library.functions == compiled.called(name)


@pytest.mark.usefixtures("needs_tools")
class TestBuilding:
    def test_once_for_each_source(self, forked_builds, empty_cache, source, monkeypatch):
        source("trivial", ANSWER.format(42))
        assert cuda_library.built("trivial") is None and cuda_library.unavailable_reason("trivial") is None
        environment = dict(os.environ)
        library = cuda_library.build("trivial")
        assert dict(os.environ) == environment
        written = library.stat().st_mtime_ns
        assert cuda_library.build("trivial").stat().st_mtime_ns == written
        assert cuda_library.load.__wrapped__("trivial").answer() == 42
        with monkeypatch.context() as without:  # built ahead of time, it serves where there is no compiler
            without.setattr(cuda_library, "compiler", lambda: None)
            assert cuda_library.unavailable_reason("trivial") is None and cuda_library.build("trivial") == library
        source("trivial", ANSWER.format(43))
        assert cuda_library.build("trivial") != library
        assert [path.name for path in empty_cache.iterdir() if path.name.startswith("building")] == []

    def test_shared_header_of_every_library(self, forked_builds, empty_cache, source, monkeypatch, tmp_path):
        shared = tmp_path / "shared"
        shared.mkdir()
        (shared / "number.cuh").write_text("constexpr int NUMBER = 1;")
        monkeypatch.setattr(cuda_library, "SHARED", shared)
        source("trivial", '#include "../shared/number.cuh"\n' + ANSWER.format("NUMBER"))
        before = cuda_library.build("trivial")
        (shared / "number.cuh").write_text("constexpr int NUMBER = 2;")
        assert cuda_library.built("trivial") is None
        assert cuda_library.build("trivial") != before
        assert cuda_library.load.__wrapped__("trivial").answer() == 2

    @pytest.fixture
    def others_wait(self, monkeypatch):
        """others_wait() returns when three threads wait for a lock."""
        waiting, flock = [], fcntl.flock

        def noted(file, how):
            try:
                flock(file, how)
            except BlockingIOError:
                waiting.append(file)
                raise

        monkeypatch.setattr(fcntl, "flock", noted)
        return lambda: wait_until(lambda: len(waiting) == 3)

    def test_several_at_once(self, empty_cache, source, monkeypatch, others_wait):
        """As ranks of one run: one of them builds, and the others take its library."""
        source("trivial", ANSWER.format(7))
        started, first = Barrier(4), []

        def builder(name, folder):
            first.append(name)
            others_wait()
            (folder / f"{name}.so").write_text("a library")
            return CompletedProcess([], 0, "what the compiler said")

        def build_at_once(name):
            started.wait(600)
            return cuda_library.build(name)

        monkeypatch.setattr(cuda_library, "_run_builder", builder)
        with ThreadPoolExecutor(4) as pool:
            paths = set(pool.map(build_at_once, ["trivial"] * 4))
        assert paths == {cuda_library.built("trivial")} and first == ["trivial"]
        home = cuda_library.built("trivial").parent.name
        assert sorted(path.name for path in empty_cache.iterdir()) == [home, f"{home}.lock"]

    def test_a_killed_build_blocks_no_other(self, empty_cache, source, programs):
        source("slow", "#include <cooperative_groups.h>\n" + ANSWER.format(5))
        process = _build_elsewhere("slow", programs)
        wait_until(lambda: list(empty_cache.glob("building-slow-*/library/lock")), process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert cuda_library.built("slow") is None
        assert cuda_library.load.__wrapped__("slow").answer() == 5

    def test_compiler_messages_reach_the_user(self, forked_builds, empty_cache, source, monkeypatch):
        source("broken", "this is no C++")
        with pytest.raises(
            cuda_library.BuildFailed, match="(?s)^broken: its build failed: [^\n]*broken.cu.*error: .*nvcc"
        ):
            cuda_library.build("broken")
        assert re.search("its build failed: .*broken.cu.*error: ", cuda_library.unavailable_reason("broken"))
        monkeypatch.setattr(cuda_library, "_run_builder", lambda *_: pytest.fail("a second attempt would fail alike"))
        with pytest.raises(cuda_library.BuildFailed, match="its build failed"):
            cuda_library.build("broken")

    def test_missing_libraries_are_built_together(self, empty_cache, source, monkeypatch):
        """No build waits for another; one that fails takes no other with it."""
        for name in ("one", "two", "broken"):
            source(name, ANSWER.format(1))
        all_run, messages = Barrier(4), []

        def builder(name, folder):
            all_run.wait(timeout=600)
            (folder / f"{name}.so").write_text("a library")
            return CompletedProcess([], name == "broken", "error: no luck")

        monkeypatch.setattr(cuda_library, "_run_builder", builder)
        with cuda_library.during_builds(messages.append):
            for _ in range(2):
                failed = cuda_library.build_missing(["one", "two", "broken"])
                assert failed == {"broken": "its build failed: error: no luck"}
        assert cuda_library.built("one") and cuda_library.built("two") and not cuda_library.built("broken")
        names = f"{cuda_library.TOOLCHAIN}, one, two, broken"
        assert messages[0] == f"building 4 CUDA libraries with nvcc, once on this machine: {names}"
        assert re.fullmatch(r"4 CUDA libraries built in \d+ s", messages[1]) and len(messages) == 2

    def test_unwritable_cache_builds_for_one_process(self, forked_builds, empty_cache, source, caplog):
        """Two libraries, one line; libraries that others built there are used."""
        source("trivial", ANSWER.format(1))
        source("other", ANSWER.format(2))
        empty_cache.write_text("a file, no folder")
        try:
            assert cuda_library.build_missing(["trivial", "other"]) == {}
            assert cuda_library.load.__wrapped__("trivial").answer() == 1
            assert cuda_library.unavailable_reason("other") is None
        finally:
            cuda_library._own_cache.cache_clear()
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith(
            f"CUDA libraries, launches and times are for this process alone, $SPARSEFRONT_KERNELS_CACHE={empty_cache} cannot"
        )

    def test_command_line(self, forked_builds, empty_cache, source, capsys):
        source("one", ANSWER.format(1))
        source("two", ANSWER.format(2))
        assert build.main() == 0
        lines = capsys.readouterr().out.splitlines()
        assert [re.sub(r"-.*/", "/", line.removeprefix(f"{empty_cache}/")).split()[0] for line in lines] == [
            "one/one.so",
            "two/two.so",
        ]
        assert all(re.search(r"\d s$", line) for line in lines)
        source("two", "neither is this")
        assert build.main() == 1
        said = capsys.readouterr()
        assert "one.so" in said.out and said.err.startswith("two: its build failed")


class TestPrebuilt:
    """Libraries that a wheel brings: no compiler is asked for."""

    @pytest.fixture(autouse=True)
    def without_tools(self, empty_cache, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", "13.4")
        monkeypatch.setattr(cuda_library, "compiler", lambda: None)
        monkeypatch.setattr(cuda_library, "ninja", lambda: None)

    def put(self, name: str, cuda: str, architectures: str = "sm80-sm90a"):
        cuda_library.PREBUILT.mkdir(exist_ok=True)
        library = cuda_library.PREBUILT / f"{cuda_library._prebuilt_prefix(name, cuda)}{architectures}.so"
        library.write_text("a library")
        return library

    def test_serves_where_nothing_can_be_built(self, source):
        source("trivial", ANSWER.format(1))
        assert "nvcc" in cuda_library.unavailable_reason("trivial")
        library = self.put("trivial", "13.0")
        assert cuda_library.unavailable_reason("trivial") is None and cuda_library.build("trivial") == library
        source("trivial", ANSWER.format(2))  # edited since
        assert cuda_library.built("trivial") is None

    @pytest.mark.parametrize("cuda", ["12.8", "14.0", None])
    def test_is_of_one_cuda_major_version(self, source, monkeypatch, cuda):
        """A driver that is new enough for this PyTorch need not be so for another CUDA runtime."""
        source("trivial", ANSWER.format(1))
        self.put("trivial", "13.0")
        monkeypatch.setattr(torch.version, "cuda", cuda)
        assert cuda_library.built("trivial") is None

    def test_serves_gpus_of_its_architectures(self, source, monkeypatch, caplog):
        """Code for 8.0 runs on 8.9; that for 9.0 on nothing else. Others build theirs, and a line says so."""
        source("trivial", ANSWER.format(1))
        library = self.put("trivial", "13.0", "sm80-sm90a-sm100")
        for gpus, serves in (
            (("80",), True),
            (("89",), True),
            (("90a",), True),
            (("103",), True),
            (("80", "90a"), True),
            (("120",), False),
            (("89", "120"), False),
        ):
            monkeypatch.setattr(cuda_library, "gpu_architectures", lambda gpus=gpus: gpus)
            assert cuda_library.built("trivial") == (library if serves else None), gpus
        assert re.search(
            r"the package has trivial-\w+-cuda13-sm80-sm90a-sm100.so, .* needs \w+-cuda13-sm120", caplog.text
        )


def test_sources_by_what_gpus_have(monkeypatch):
    """Kernels that multiply by wgmma stay Hopper's, and say so; a machine builds what one of its GPUs runs."""
    problem = Problem(64, 256, 256, torch.float16, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_library, "unavailable_reason", lambda name: None)
    for capability, few in (((7, 5), True), ((8, 0), False), ((8, 9), False), ((9, 0), False), ((12, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None, value=capability: value)
        reasons = {name: library_unsupported_reason(problem, name) for name in cuda_library.SOURCES}
        runs = {name for name, reason in reasons.items() if reason is None}
        assert runs.isdisjoint(cuda_library.WGMMA) == (capability != (9, 0))
        assert few == (not runs) and ("csr_sm90" in runs) != few and "gathered_simt" in (reasons if few else runs)
        assert ("layer_norm_columns" in runs) == (capability == (9, 0))
        if capability[0] in (8, 12):
            needed = "needs wgmma, which compute capability 9.0 alone has, this GPU has {}.{}"
            assert reasons["gathered_sm90_persistent"] == needed.format(*capability)
    includes = {name: source.read_text() for name, source in cuda_library.SOURCES.items()}
    others = {name for name, text in includes.items() if not re.search(r"(wgmma|_consumer|mma_tiles)\.cuh", text)}
    assert others.isdisjoint(cuda_library.WGMMA) and others | cuda_library.WGMMA >= set(cuda_library.SOURCES)


@pytest.mark.skipif(cuda_library.compiler() is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("name", "architecture"),
    [("gathered_indexed", "80"), ("csr_sm90", "89"), ("gathered_indexed", "100"), ("csr_sm90", "120")],
)
def test_compiles_for_other_gpus(name, architecture, tmp_path):
    """Two that take little time; `python -m sparsefront_kernels.build --prebuilt` compiles everything."""
    flags = [flag for flag in cuda_library._flags(name, (architecture,)) if flag != "-lineinfo"]
    command = [
        cuda_library.compiler(),
        *flags,
        "-cubin",
        str(cuda_library.SOURCES[name]),
        "-o",
        str(tmp_path / "cubin"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"for 'sm_{architecture}'" in done.stderr
    spilled = [int(stores) for stores in re.findall(r"(\d+) bytes spill stores", done.stderr)]
    assert max(spilled) <= 64


@pytest.mark.skipif(cuda_library.compiler() is None, reason="needs nvcc")
def test_prebuilt_library_holds_the_runtime(empty_cache, source, capsys, monkeypatch):
    """So that nothing of CUDA but the driver need be there, and no second build of it stays behind."""
    monkeypatch.setattr(cuda_library, "FLAGS", ())
    runtime = "#include <cuda_runtime_api.h>\nint version; "
    source("trivial", runtime + ANSWER.format("cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0"))
    (cuda_library.PREBUILT).mkdir()
    (cuda_library.PREBUILT / "trivial-of_other_sources-cuda13-sm90a.so").write_text("old")
    assert build.main(["--prebuilt", "--architectures", "80", "90a"]) == 0
    (library,) = cuda_library.PREBUILT.iterdir()
    assert library.name.endswith("-sm80-sm90a.so")
    assert str(library) in capsys.readouterr().out
    assert b"libcudart.so" not in library.read_bytes() and ctypes.CDLL(str(library)).answer() >= 12000
    monkeypatch.setattr(torch.version, "cuda", cuda_library._compiler_version(cuda_library.compiler()))
    assert cuda_library.built("trivial") == library


class TestFailingCompiler:
    """It is there, and it fails: no kernel of its libraries is offered, rather than that the first forward raises."""

    @pytest.fixture
    def compiler(self, tmp_path, monkeypatch):
        """(script) -> that is nvcc now."""

        def put(script: str) -> None:
            nvcc = tmp_path / "cuda" / "bin" / "nvcc"
            nvcc.parent.mkdir(parents=True, exist_ok=True)
            nvcc.write_text(f"#!/bin/sh\n{script}\n")
            nvcc.chmod(0o755)
            monkeypatch.setattr(cuda_library, "compiler", lambda: str(nvcc))

        return put

    @pytest.fixture
    def trial(self, monkeypatch, tmp_path):
        """The trial itself, in a cache of its own."""
        monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(cuda_library, "_failures", {})
        monkeypatch.setattr(cuda_library, "PREBUILT", tmp_path / "prebuilt")
        cuda_library._warn_once.cache_clear()
        cuda_library.load.cache_clear()

    @pytest.mark.usefixtures("needs_tools")
    def test_fault_is_seen_before_offering(self, trial, forking, compiler, monkeypatch, caplog):
        monkeypatch.setattr(cuda_library, "subprocess", forking)
        compiler('echo "nvcc fatal error: unsupported GNU version"; exit 1')
        for _ in range(2):
            said = cuda_library.unavailable_reason("csr_sm90")
            assert "cannot be built here" in said and "unsupported GNU version" in said
            monkeypatch.setattr(cuda_library, "_run_builder", lambda *_: pytest.fail("one trial is enough"))
        assert [record.levelname for record in caplog.records] == ["WARNING"], "one line for all libraries"


class TestMissingTools:
    @pytest.mark.parametrize(("tool", "named"), [("compiler", "CUDA's compiler nvcc"), ("ninja", "pip install ninja")])
    def test_fault_is_logged_once(self, tool, named, empty_cache, source, monkeypatch, caplog):
        if torch.version.cuda is None:
            pytest.skip("this PyTorch is one without CUDA")
        source("trivial", ANSWER.format(1))
        if tool == "ninja":
            monkeypatch.setattr(cuda_library, "compiler", lambda: sys.executable)
        monkeypatch.setattr(cuda_library, tool, lambda: None)
        for _ in range(2):
            assert named in cuda_library.unavailable_reason("trivial")
        with pytest.raises(cuda_library.BuildFailed, match=f"trivial: needs .*{named.split()[-1]}"):
            cuda_library.build("trivial")
        assert [record.levelname for record in caplog.records if named in record.getMessage()] == ["WARNING"]


def _build_elsewhere(name: str, programs: ProgramServer) -> Program:
    """Another process, in a group of its own, builds a source and prints the library's path."""
    code = (
        "from pathlib import Path; from sparsefront_kernels import cuda_library\n"
        f"cuda_library.SOURCES = {{{name!r}: Path({str(cuda_library.SOURCES[name])!r})}}\n"
        f"print(cuda_library.build({name!r}))"
    )
    return programs.start(["-c", code])
