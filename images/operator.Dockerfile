# The image of controller and webhook. `make images REGISTRY=…` builds it, from the repository's root.
# BASE=NAME@sha256:DIGEST there holds it to one base image.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE} AS build
COPY pyproject.toml README.md LICENSE /source/
COPY agent /source/agent
COPY operator /source/operator
COPY images/rootfs.sh images/requirements-operator.txt /source/images/
RUN /source/images/rootfs.sh /root-of-image operator

FROM ${BASE}
COPY --from=build /root-of-image/opt/kvpool /opt/kvpool
ENV PYTHONPATH=/opt/kvpool
USER 10001:10001
