#!/usr/bin/env bash
# Install refstore into a folder of its own: install.sh [--with-spark] FOLDER
# Packages are installed by the hashes of requirements-image.lock, and the project without dependencies. Spark is two
# thirds of them, needs a Java, and is for lakes that one machine cannot collect. The Containerfile runs this; so does a
# test, in a plain folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

with_spark=
if [[ ${1:-} == --with-spark ]]; then with_spark=yes; shift; fi
if (($# != 1)) || [[ $1 == -* ]]; then echo "usage: ${0##*/} [--with-spark] FOLDER" >&2; exit 2; fi
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
cp requirements-image.lock "$scratch/packages.lock"
[[ -n $with_spark ]] || sed -i '/^\(pyspark\|py4j\)==/,/[^\\]$/d' "$scratch/packages.lock"
"${install[@]}" --require-hashes -r "$scratch/packages.lock"
"${install[@]}" --no-build-isolation --no-deps .
install -m 0755 deploy/container/healthy.py "$target/bin/refstore-healthy"
sed -i "1s|.*|#!$target/bin/python|" "$target/bin/refstore-healthy"
