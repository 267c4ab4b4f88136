#!/bin/sh
# Installs one part of kvpool into a root file system: rootfs.sh ROOT PART puts it and its libraries into
# ROOT/opt/kvpool. PART is an extra of pyproject.toml: agent or operator. The libraries are those of
# requirements-PART.txt, and pip refuses a file whose hash is another one; hack/lock.py makes that list.
#
# The Dockerfiles and the test images both call this, so what is tested is what ships. ROOT brings Python 3.11 and sets
# PYTHONPATH=/opt/kvpool; the packages are chosen for that interpreter, not for the one that runs pip ($PYTHON).
set -eu
umask 022

repository=$(cd "$(dirname "$0")/.." && pwd)
root=${1:?usage: rootfs.sh ROOT PART}
part=${2:?usage: rootfs.sh ROOT PART}
python=${PYTHON:-python3}
machine=$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir "$work" "$repository"
wheel=$(echo "$work"/kvpool-*.whl)
cp "$repository/images/requirements-$part.txt" "$work/requirements.txt"
# one call for all: a second one into the same folder would leave out the commands of one of the two
echo "kvpool @ file://$wheel --hash=sha256:$(sha256sum "$wheel" | cut -d' ' -f1)" >> "$work/requirements.txt"
rm -rf "$root/opt/kvpool"
# whether they fit what is installed beside pip is no question here, and takes long to answer
"$python" -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-compile --no-warn-conflicts \
    --target "$root/opt/kvpool" --only-binary=:all: --implementation cp --python-version 3.11 \
    --platform "manylinux_2_28_$machine" --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" \
    --no-deps --require-hashes -r "$work/requirements.txt"
# pods run modules; the commands that libraries bring along are nobody's, and kvpool's own needs an extra that is not here
rm -rf "$root/opt/kvpool/bin"
# The root file system is read-only in the pod, so byte code that is not in the image is made anew at every start. It is
# not tied to file times, which layers of an image round.
compile="compileall -q --invalidation-mode unchecked-hash"
if [ -x "$root/usr/bin/python3" ] && [ "$(id -u)" = 0 ]; then
    chroot "$root" /usr/bin/python3 -m $compile /opt/kvpool
elif "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    "$python" -m $compile -s "$root" -p / "$root/opt/kvpool"
fi
