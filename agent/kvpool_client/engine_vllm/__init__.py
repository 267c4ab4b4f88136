"""The adapter for vLLM: our tier under its own tiering manager, chosen by configuration alone.

Imported inside the engine's processes only. Works with vLLM's OffloadingConnector and TieringOffloadingSpec; what is
relied on beyond their documented methods is listed in docs/architecture.md, and held by tests per engine version.
"""
