"""The controller: makes a pool's objects, asks its agents, writes its status. One replica at a time.

Level-triggered: a pass over a pool reads everything anew and brings it about, so it may be killed anywhere and started
again. Watches only say that a pass is due sooner. What to do is decided in `kvpool_operator.desired`, without I/O; here
are the API server, the agents and the clock. It is neither in the data path nor in the readiness path: while it is
away, engines serve, share and warm up as ever.
"""
