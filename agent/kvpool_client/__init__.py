"""The engine-side client: runs inside the engine's container, on whatever Python ≥ 3.10 the engine brings.

Standard library only, save that `engine_vllm` uses what the engine itself has. It never raises into the engine and
never blocks its scheduler thread: whatever fails here ends in the engine computing the tokens itself.
"""

VERSION = "0.1.0.dev0"
