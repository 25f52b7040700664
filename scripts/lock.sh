#!/usr/bin/env bash
# Write the requirements locks anew. ARGS such as --upgrade or --upgrade-package NAME are passed to uv.
#
# A requirements file with hashes, unlike uv.lock or pylock.toml, names no registry: it installs from whichever one serves the
# same bytes. Spark is in a lock of its own: 456 MB that a demo does not need. No site's own package sources have a say in it
# either: whatever uv and pip are configured to here is left out.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
  env -u UV_FIND_LINKS -u UV_INDEX -u UV_EXTRA_INDEX_URL .venv/bin/uv pip compile --quiet --no-config \
    --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}

# The largest first: the others take its versions, so that whatever is installed last, nothing is exchanged.
services="pyproject.toml --extra redis --extra postgres --extra s3 --extra fsspec --extra metrics --extra api --extra s3-gateway --group dev"
spark="$services --extra purge --extra spark --group s3-clients"
compile $spark --group bench -o requirements-bench.lock "${@}"
compile $spark --constraints requirements-bench.lock -o requirements-spark.lock "${@}"
compile $services --constraints requirements-spark.lock -o requirements.lock "${@}"

compile pyproject.toml --extra all --group image --constraints requirements-bench.lock -o requirements-image.lock "${@}"
compile --group pyproject.toml:duckdb-httpfs -o requirements-duckdb-httpfs.lock "${@}"

locks="requirements.lock requirements-spark.lock requirements-bench.lock requirements-image.lock requirements-duckdb-httpfs.lock"

asked=$(.venv/bin/python scripts/asked.py)
for lock in $locks; do
  printf '%s\n' "# pyproject.toml: $asked" "$(<"$lock")" >"$lock.new"
  mv "$lock.new" "$lock"
done

if grep -nE '[a-z]+://|find-links|index-url' $locks; then
  echo "lock: the lines above name a package source; they must not" >&2
  exit 1
fi
