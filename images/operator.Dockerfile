# The image of controller and webhook. Built from the repository's root:
#   docker build -f images/operator.Dockerfile -t kvpool-operator .
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip python3-venv
COPY pyproject.toml README.md LICENSE /source/
COPY agent /source/agent
COPY operator /source/operator
COPY images/rootfs.sh images/requirements-operator.txt /source/images/
RUN /source/images/rootfs.sh /root-of-image operator

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build /root-of-image/opt/kvpool /opt/kvpool
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/kvpool
ENV PYTHONPATH=/opt/kvpool
USER 10001:10001
