#!/usr/bin/env bash
# Install refstore with all that it can use into a folder of its own: by the hashes of requirements-image.lock, and the
# project without dependencies. The Containerfile runs it; so does a test, in a plain folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$1
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# REFSTORE_INSTALLER: a uv that is several times faster than pip; the image needs none.
if [[ -n ${REFSTORE_INSTALLER:-} ]]; then
  "$REFSTORE_INSTALLER" venv --quiet --python "$python" "$target"
  install=("$REFSTORE_INSTALLER" pip install --quiet --python "$target/bin/python")
else
  "$python" -m venv "$target"
  install=("$target/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir)
fi
"${install[@]}" --require-hashes -r requirements-image.lock
"${install[@]}" --no-build-isolation --no-deps .
install -m 0755 deploy/container/healthy.py "$target/bin/refstore-healthy"
sed -i "1s|.*|#!$target/bin/python|" "$target/bin/refstore-healthy"
