"""What all messages between agents are: a header told apart by its `t` field."""

import msgspec


class Message(msgspec.Struct, tag_field="t"):
    """Base of all messages. Unknown fields are ignored, so a newer peer may say more."""
