"""Programs of the repository, each in a process of its own that has imported torch already.

Importing it takes longer than most of the runs that tests ask for. A server imports it once, without running anything,
and forks for every program: arguments, folder, environment, output and exit status are the program's own.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

IMPORTED = (
    "sparsefront.pipeline",
    "sparsefront.stages.control",
    "sparsefront.stages.measure",
    "sparsefront.stages.report",
    "sparsefront.config.command_line",
    "pandas",
    "torch._dynamo",
)
POLL_SECONDS = 0.01  # at first
LONGEST_POLL_SECONDS = 0.2  # of a program that takes long


class Program:
    """A process that a server has forked.

    Args:
        pid: of the process, whose group is its own.
    """

    def __init__(self, server: "ProgramServer", pid: int, output: Path) -> None:
        self.server, self.pid, self._output = server, pid, output
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, as `subprocess` has it; None while the program runs."""
        if self._status is None:
            self._status = self.server.ask("poll", self.pid)
        return self._status

    def wait(self, timeout: float = 600) -> int:
        """The exit status.

        Raises:
            TimeoutError: the program took longer than so many seconds, and was killed.
        """
        deadline, seconds = time.monotonic() + timeout, POLL_SECONDS
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                raise TimeoutError(f"the program runs after {timeout} s:\n{self.text('stderr')}")
            time.sleep(seconds)
            seconds = min(1.2 * seconds, LONGEST_POLL_SECONDS)
        return status

    def kill(self) -> None:
        """The process alone, not those that it has started; nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def text(self, stream: str) -> str:
        """What it has written to stdout or stderr."""
        return (self._output / stream).read_text(errors="replace")


class ProgramServer:
    """Starts programs, also from several threads; `close` ends it.

    Args:
        imported: modules that programs find imported.
    """

    def __init__(self, imported: tuple[str, ...] = IMPORTED) -> None:
        self._imported = imported
        self._folder = tempfile.TemporaryDirectory(prefix="programs-")
        self._numbers, self._turn = count(1), threading.Lock()
        self._process: subprocess.Popen | None = None

    def start(self, words: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> Program:
        """Start `python WORDS`: FILE ..., -m MODULE ... or -c CODE ...

        Args:
            cwd: None for this process's folder.
            env: None for this process's environment.
        """
        output = Path(self._folder.name) / str(next(self._numbers))
        output.mkdir()
        for stream in ("stdout", "stderr"):  # can be read from now on
            (output / stream).touch()
        pid = self.ask("start", list(map(str, words)), str(cwd or Path.cwd()), dict(env or os.environ), str(output))
        return Program(self, pid, output)

    def run(
        self, words: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess:
        """Start and wait for the end."""
        program = self.start(words, cwd=cwd, env=env)
        status = program.wait(timeout)
        return subprocess.CompletedProcess(words, status, program.text("stdout"), program.text("stderr"))

    def ask(self, *question: object) -> int | None:
        with self._turn:
            if self._process is None:
                self._process = self._new_process()
            print(json.dumps(question), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())

    def _new_process(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, __file__, *self._imported],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},  # a process cannot use a GPU that its parent has looked for
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        if self._process is not None:
            # told in words: a forked process that still lives, as a loader's worker, keeps its end of the pipe open
            self.ask("end")
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
        self._folder.cleanup()


def serve() -> None:
    """Answer the questions that come by stdin, a line each."""
    import gc
    import importlib

    gc.disable()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if IMPORTED[0] in sys.argv:
        read_what_every_run_reads()
    gc.freeze()  # or the first collection in each program would copy all memory that it shares with this process
    gc.enable()
    answers = os.fdopen(os.dup(1), "w")
    while question := sys.stdin.readline():
        kind, *told = json.loads(question)
        if kind == "end":
            print(json.dumps(None), file=answers, flush=True)
            break
        if kind == "start":
            if (pid := os.fork()) == 0:
                become(*told)
            answer = pid
        else:
            pid, status = os.waitpid(told[0], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), file=answers, flush=True)


def read_what_every_run_reads() -> None:
    """The YAML of the default options and the sources of the library: programs find them parsed, by their content."""
    import functools

    from quick_compositions import composed_in, merge_equal_choices_once, parse_each_content_once

    from sparsefront.artifacts import code_digest

    parse_each_content_once()
    merge_equal_choices_once()
    composed_in(Path(), Path(), ())
    code_digest._parse = functools.cache(code_digest._parse)
    for file in Path(code_digest.__file__).parents[1].rglob("*.py"):
        code_digest.read_python(file.read_bytes())


def become(words: list[str], cwd: str, environment: dict[str, str], output: str) -> None:
    """Run a program in this process, as Python would, and end."""
    os.setsid()
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, f"{output}/stdout", os.O_CREAT | os.O_WRONLY),
        (2, f"{output}/stderr", os.O_CREAT | os.O_WRONLY),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    first = words[0]
    own = os.path.dirname(os.path.abspath(first)) if first not in ("-c", "-m") else cwd
    sys.path[0:1] = [own, *added]
    end(exit_status(words))


def exit_status(words: list[str]) -> int:
    """Run a program to its end and say what Python would."""
    import runpy

    first = words[0]
    try:
        if first == "-c":
            sys.argv = ["-c", *words[2:]]
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            exec(compile(words[1], "<string>", "exec"), vars(main))
        elif first == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            runpy.run_path(first, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(status: int) -> None:
    """As Python ends, but modules are left to the system: taking torch apart takes half a second."""
    import atexit

    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    serve()
    os._exit(0)  # native libraries have much to say about an end
