"""The peer protocol: what agents say to each other. `frames` is sans-IO; `connection` moves frames over a socket."""
