"""The reasons why declared prefixes are not told of."""

from kvpool_contract.reason import Reason

PREFIX_REASONS = (
    Reason(
        "no_tokenizer",
        "The engine's server does not turn a declared prefix's text into token ids.",
        "Declare the prefix by its tokenIds, or let the server answer /tokenize without a key.",
    ),
    Reason(
        "names_unknown",
        "The agent can't make the names that this engine gives to blocks, so it tells of none.",
        "Set --prefix-caching-hash-algo to sha256 or sha256_cbor, and use an engine version in the tested window.",
    ),
    Reason(
        "prefix_too_short",
        "A declared prefix is shorter than a block, and only whole blocks are shared.",
        "Declare more of the prompt, lower engine.blockTokens, or take the prefix out.",
    ),
)
