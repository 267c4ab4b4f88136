"""The arena: shared memory in equal slots, its index, tags, leases. Threads call it; one lock, no I/O."""
