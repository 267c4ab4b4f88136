"""The agent: a sidecar that keeps, finds and moves blocks for the engine beside it (docs/architecture.md)."""
