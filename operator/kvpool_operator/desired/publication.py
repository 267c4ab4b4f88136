"""What members tell each other of."""

from typing import Annotated, Literal

from kvpool_operator.desired.parts import Part, field


class Publication(Part, frozen=True):
    """What members tell each other of. It costs no bytes: a block moves when it is asked for."""

    policy: Annotated[
        Literal["Always", "Never"],
        field(
            "Always: a member tells of every block that it holds. Never: of none, so that nobody loads from it, while "
            "it still finds its own and those of others."
        ),
    ] = "Always"
    max_depth_tokens: Annotated[
        int,
        field(
            "Of no block that ends deeper in its prompt than so many tokens, in whole blocks. 0: no bound.",
            ge=0,
            le=2**31,
        ),
    ] = 0
    decode_output: Annotated[
        bool,
        field(
            "Whether what an engine generates is kept and told of as its prompts are. A conversation whose next turn "
            "contains the answer finds it then, on every replica, for the copies and the memory that each answer "
            "takes in host pool and arena. false: what is kept and told of ends with the last whole block of the "
            "prompt, and an engine finds what it has generated on its own device alone."
        ),
    ] = False
