"""What the agent asks the engine's own HTTP port has an end, whatever answers there."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from kvpool_agent.flows.engine_http import complete, metrics

BODY = b'{"choices": []}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
PIECES, PAUSE_SECONDS = 200, 0.02  # of who dribbles: it would be done some time, so a test never hangs
Answers = Callable[[socket.socket, threading.Event], None]


def whole(connection: socket.socket, _over: threading.Event) -> None:
    connection.sendall(HEAD % len(BODY) + BODY)


def dribbled_body(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(HEAD % PIECES)
    for _ in range(PIECES):
        connection.sendall(b" ")
        if over.wait(PAUSE_SECONDS):
            return


def dribbled_head(connection: socket.socket, over: threading.Event) -> None:
    for _ in range(PIECES):
        connection.sendall(b"H")
        if over.wait(PAUSE_SECONDS):
            return


@pytest.fixture
def engine() -> Iterator[Callable[[Answers], int]]:
    """The port of one that answers its first request so."""
    over, threads, made = threading.Event(), list[threading.Thread](), list[socket.socket]()

    def start(answers: Answers) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        made.append(listener)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                try:
                    answers(connection, over)
                except OSError:  # who asked has gone
                    return

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    over.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for listener in made:
        listener.close()


def test_an_answer_is_read_whole(engine: Callable[[Answers], int]) -> None:
    assert complete(engine(whole), {}, 20.0) == (200, BODY)
    assert metrics(engine(whole), 20.0) == BODY.decode()


@pytest.mark.parametrize("answers", [dribbled_head, dribbled_body])
def test_an_engine_that_dribbles_its_answer_is_waited_for_no_longer_than_was_said(
    engine: Callable[[Answers], int], answers: Answers
) -> None:
    with pytest.raises(TimeoutError):
        complete(engine(answers), {}, 0.3)
