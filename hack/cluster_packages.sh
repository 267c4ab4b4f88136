#!/bin/sh
# Installs the Debian packages that the cluster tests need, those that are missing. Needs root.
set -eu

missing=""
for package in busybox-static conntrack containerd containernetworking-plugins debootstrap iproute2 iptables libnuma1 runc; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
done
if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086 (a list of names)
    apt-get install -q -y --no-install-recommends $missing
fi
