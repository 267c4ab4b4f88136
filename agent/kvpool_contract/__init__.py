"""What operator and agent agree on: configuration, status, reasons, names.

Both sides import it, it imports nothing of ours: a change here is a change of an interface between processes
that may run different versions, so every document carries a version (docs/architecture.md, Versions).
"""
