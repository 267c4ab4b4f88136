"""The admission webhook: a small HTTPS server around the pure injector. Stateless; any number of replicas.

It stands on its own: it reads the pools by list and watch, writes nothing, and loads neither kopf nor the Kubernetes
client, so that it starts in a fraction of a second in a small image.
"""
