"""What people and the operator see: status, metrics, and the engine's own health and counters."""
