"""The server that starts the programs of other tests."""

import os
import threading
import time

from program_server import ProgramServer


def test_server_ends_before_its_fork():
    """As a loader's worker may, which has inherited this process's end of the pipe that the server reads."""
    server = ProgramServer(imported=())
    assert server.run(["-c", "print(6 * 7)"]).stdout == "42\n"
    if (child := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    try:
        end = threading.Thread(target=server.close, daemon=True)
        end.start()
        end.join(600)
        assert not end.is_alive()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
