"""A pool as it is wanted: its API types, and the objects that follow from it. Pure: no cluster, no files.

The command line uses it to print manifests; whatever applies them needs no second opinion about their
content.
"""
