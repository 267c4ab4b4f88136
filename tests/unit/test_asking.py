"""The controller's question at the peer port: the agent's own frames, read in any pieces, everything else refused."""

import pytest

from kvpool_agent.peer import frames
from kvpool_contract import asking
from kvpool_contract.asking import Answer, AskingError

WELCOME = frames.encode(frames.Welcome(4, "a-uid", "inc", "Ready(warm)", "", 0))
TOLD = frames.encode(frames.StatusTold(), 9) + b'{"a": 10}'


def test_the_question_is_made_of_the_agents_frames() -> None:
    hello = frames.Hello([frames.STATUS_VERSION], "chat", "controller", "controller")
    assert asking.question("chat") == frames.encode(hello) + frames.encode(frames.Status())


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_answer_is_read_in_any_pieces(piece: int) -> None:
    answer, data = Answer(), WELCOME + TOLD
    ends = [answer.feed(data[i : i + piece]) for i in range(0, len(data), piece)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert (answer.member, answer.status) == ("a-uid", b'{"a": 10}')


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (TOLD, "it answers with 'status_told'"),
        (WELCOME + WELCOME, "it answers with 'welcome'"),
        (WELCOME + frames.encode(frames.FetchEnd()), "it answers with 'end'"),
        (frames.encode(frames.Refused("other_pool")), "it refuses: other_pool"),
        (WELCOME + frames.encode(frames.StatusTold(), asking.MAX_STATUS + 1), "does not speak kvpool's protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak kvpool's protocol"),
        (frames.LENGTHS.pack(3, 0) + b"\xc1\xc1\xc1", "does not speak kvpool's protocol"),
        (frames.LENGTHS.pack(1, 0) + b"\x01", "does not speak kvpool's protocol"),
    ],
)
def test_anything_else_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(AskingError, match=problem):
        Answer().feed(data)
