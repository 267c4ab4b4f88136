# The agent's image, which also brings the engine's plug-in. `make images REGISTRY=…` builds it, from the repository's root.
FROM docker.io/library/python:3.11-slim-bookworm AS build
COPY pyproject.toml README.md LICENSE /source/
COPY agent /source/agent
COPY operator /source/operator
COPY images/rootfs.sh images/requirements-agent.txt /source/images/
RUN /source/images/rootfs.sh /root-of-image agent

FROM docker.io/library/python:3.11-slim-bookworm
COPY --from=build /root-of-image/opt/kvpool /opt/kvpool
ENV PYTHONPATH=/opt/kvpool
USER 10001:10001
