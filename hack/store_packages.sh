#!/bin/sh
# Installs a Valkey or Redis server for the tests of the external store, where there is none. Needs root. The package of
# its tools holds the server's program, too, and starts none.
set -eu

for program in valkey-server redis-server valkey-check-rdb redis-check-rdb; do
    command -v "$program" >/dev/null && exit 0
done
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends valkey-tools || apt-get install -q -y --no-install-recommends redis-tools
