"""The engine port: a Unix socket on which the engine's client attaches, asks, loads and stores."""
