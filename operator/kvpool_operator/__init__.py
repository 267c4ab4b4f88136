"""The Kubernetes side of kvpool: what a pool means as objects, and how a pod template joins it."""
