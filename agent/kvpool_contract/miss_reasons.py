"""The reasons of misses: why a block that a request lacked was not loaded."""

from kvpool_contract.reason import Reason

MISS_REASONS = (
    Reason(
        "never_published",
        "No live member holds the block, and none that was asked remembers that it made room.",
        "Nothing to do: it is computed and then shared.",
    ),
    Reason(
        "incompatible",
        "All live members that hold blocks have another format than this engine.",
        "See the fields that differ below the table of kvpool status; give the engines the same model and options.",
    ),
    Reason(
        "evicted",
        "The block was held by a member, and made room before it was needed.",
        "Raise tiers.memory.size, here or at the member that held it.",
    ),
    Reason(
        "window_missing",
        "The prefix is held, but not the last blocks that a sliding-window layer needs to go on there.",
        "Raise tiers.memory.size: the blocks of windows are evicted one by one.",
    ),
    Reason(
        "state_missing",
        "The prefix is held, but not the state that recurrent layers need to go on there, or the prompt ends there.",
        "Nothing to do where prompts part in the middle: engines keep few states. Else raise tiers.memory.size.",
    ),
    Reason(
        "transfer_failed",
        "The transfer from a peer broke off or its bytes failed the check.",
        "Look at the peer named in the log.",
    ),
    Reason(
        "busy",
        "The source or the agent had no stream or queue place free.",
        "Raise the stream bounds if the network has room.",
    ),
    Reason(
        "deadline",
        "The load deadline passed; the tokens are computed instead.",
        "Look at transfer times; the link may be too slow for sharing to pay.",
    ),
    Reason(
        "too_slow",
        "Loading would have taken longer than computing, by what both have cost lately.",
        "Nothing to do; `costs` in the agent's status says what was measured. A faster network would make sharing pay.",
    ),
    Reason("loading_off", "The pool's loading.mode is Never.", "Set loading.mode to Measured to load again."),
    Reason(
        "directory_unreachable",
        "No member answered the lookup in time.",
        "Look at the network between the pods of the pool.",
    ),
    Reason(
        "breaker_open",
        "A member that may hold the block failed several times in a row, or was too slow, and is left alone for now.",
        "Look at the peer in kvpool status, at its log and at the network to it; it is tried again by itself.",
    ),
    Reason(
        "distrusted",
        "Blocks of a member that may hold this one changed an answer of the engine, so it is no source any more.",
        "See the condition Faithful and `canary` in the agent's status: make that member's pod anew, then this one's.",
    ),
    Reason(
        "no_room",
        "Neither arena nor host pool had room for the block.",
        "Raise tiers.memory.size or engine.hostPool.size.",
    ),
    Reason(
        "just_restarted",
        "The worker was restarted and writes nothing into its arena for two seconds, while the engine may still read.",
        "Nothing to do; see the agent's log for why the worker ended.",
    ),
    Reason("unknown", "No other reason was recorded.", "Report this with the agent's log."),
    Reason(
        "disk_failed",
        "The disk tier held the block and did not bring it: it could not be read, or was not what was written.",
        "See the disk's state in the agent's status and `disk_damaged_files`; such a file is put aside.",
    ),
)
