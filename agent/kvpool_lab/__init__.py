"""The lab: recorded traffic through the policies that run in agents (docs/architecture.md)."""
