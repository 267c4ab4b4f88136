"""Rules without I/O: what is hot, what is warmed, when a pod is ready. Time and chance are arguments."""
