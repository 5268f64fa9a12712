"""``python -m benchmarks.bare_copy FOLDER BYTES``: the least work of a group of three, without logs and agreement.

This process writes blocks of 1 MiB to a file and to two sockets. Two other processes receive them, and write them to
their files. One JSON object for each line of standard input: the seconds until all bytes are in the three files.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

FOLLOWERS = 2
BLOCK = 1 << 20
# As of our nodes.
SOCKET_BYTES = 2 << 20
AHEAD = 64 << 20
DONE = b"."


class CopyFile:
    """A new file whose blocks are allocated ahead, as in a store."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._end = 0

    def write(self, data: memoryview) -> None:
        if self._end % AHEAD == 0:
            os.posix_fallocate(self._descriptor, self._end, AHEAD)
        self._end += os.pwrite(self._descriptor, data, self._end)

    def close(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def receive(path: Path, port: int) -> None:
    """Write what comes to a new file, round by round: eight bytes with the size, and the bytes."""
    buffer = memoryview(bytearray(BLOCK))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        _set_up(connection)
        while size := int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big"):
            file = CopyFile(path)
            while size:
                count = connection.recv_into(buffer, min(size, BLOCK), socket.MSG_WAITALL)
                if not count:
                    return  # the sender has ended
                file.write(buffer[:count])
                size -= count
            connection.sendall(DONE)
            file.close()


def copy(path: Path, size: int, followers: list[socket.socket]) -> float:
    block = memoryview(random.Random(size).randbytes(BLOCK))
    start = time.perf_counter()
    file = CopyFile(path)
    for follower in followers:
        follower.sendall(size.to_bytes(8, "big"))
    left = size
    while left:
        part = block[:left]
        file.write(part)
        for follower in followers:
            follower.sendall(part)
        left -= len(part)
    for follower in followers:
        assert follower.recv(1) == DONE
    seconds = time.perf_counter() - start
    file.close()
    return seconds


def _set_up(connection: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)


@contextmanager
def connected(folder: Path) -> Iterator[list[socket.socket]]:
    """The sockets of the two other processes, which end afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        paths = [folder / f"follower-{number}" for number in range(FOLLOWERS)]
        processes = [get_context("fork").Process(target=receive, args=(path, port)) for path in paths]
        for process in processes:
            process.start()
        followers = [server.accept()[0] for _ in processes]
    try:
        for follower in followers:
            _set_up(follower)
        yield followers
    finally:
        for follower in followers:
            follower.close()
        for process in processes:
            process.join()


def main() -> None:
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    with connected(folder) as followers:
        print(json.dumps({"started": True}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"seconds": copy(folder / "leader", size, followers)}), flush=True)


if __name__ == "__main__":
    main()
