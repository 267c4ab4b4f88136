"""Blocks by RDMA: read by their consumer out of the source's arena into its own, past both agents' processors.

One process for each device owns all that belongs to it (`process`, over `verbs`, the only module that knows pyverbs):
pyverbs holds the interpreter's lock in every call, and a fault in a driver must not be the agent's. The worker talks to
it by `nic`, keeps devices and slabs registered with `transport`, and reads with `reader`.
"""
