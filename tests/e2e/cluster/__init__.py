"""The suite on a real Kubernetes: real engines, real agents, real probes and Services."""
