# The agent's image, which also brings the engine's plug-in. `make images REGISTRY=…` builds it, from the repository's root.
# BASE=NAME@sha256:DIGEST there holds it to one base image.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE} AS build
COPY pyproject.toml README.md LICENSE /source/
COPY agent /source/agent
COPY operator /source/operator
COPY images/rootfs.sh images/requirements-agent.txt /source/images/
RUN /source/images/rootfs.sh /root-of-image agent

FROM ${BASE}
# pyverbs is bound to one release of rdma-core, so both are the distribution's, whose Python is 3.11 too; the providers
# are the devices' drivers
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-pyverbs=44.0-2 ibverbs-providers=44.0-2 \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/lib/python3/dist-packages/pyverbs /usr/local/lib/python3.11/site-packages/pyverbs
COPY --from=build /root-of-image/opt/kvpool /opt/kvpool
ENV PYTHONPATH=/opt/kvpool
USER 10001:10001
