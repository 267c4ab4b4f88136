"""Who the members are and who holds a chain. Soft state only: losing it costs misses, never wrong data."""
