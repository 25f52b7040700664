#!/usr/bin/env bash
# Make .venv and install the packages of a requirements lock, by hash, and this project. Quick when nothing changed.
# With a folder as the second argument, install the packages there, and not the project: they cannot stand beside the others.
#
# Needs Python 3.11 or later with venv, or with pip: a plain Debian has python3 without ensurepip, so that `python3 -m venv`
# fails; uv, fetched by pip into a temporary directory, makes the environment then.
set -euo pipefail
cd "$(dirname "$0")/.."

lock=${1:-requirements.lock}
folder=${2:-}
python=${PYTHON:-$(command -v python3.11 || command -v python3 || true)}
stamp=.venv/.installed-$lock
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

say() { echo "setup: $*" >&2; }

# The checkout's place counts: the project is installed by reference to it.
wanted=$( { pwd; cat "$lock" pyproject.toml "$0"; } | cksum)
if [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]] && .venv/bin/python -c '' 2>/dev/null; then
  exit 0
fi

if [[ -z $python ]] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  say "Python 3.11 or later is needed; install it (Debian: apt-get install python3), or say where it is with PYTHON=..."
  exit 1
fi

# uv comes by hash as well: its own lines of the lock are a small lock.
awk '/^uv==/{on=1} on{print} on&&!/\\$/{exit}' requirements.lock >"$scratch/uv.txt"

# uv trusts its own certificates; where the system has some, those are the ones its administrator chose.
[[ ! -e /etc/ssl/certs/ca-certificates.crt ]] || export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
export UV_LINK_MODE=${UV_LINK_MODE:-copy} # a cache on another file system would warn about links on every run
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# uv is several times faster; pip knows a site's own package index, of which uv knows nothing.
install() {
  "$uv" pip install --quiet --python .venv/bin/python "$@" && return
  say "uv could not do it; trying pip"
  if .venv/bin/python -m pip --version >/dev/null 2>&1; then
    .venv/bin/python -m pip install --quiet "$@"
  else
    "$python" -m pip --python .venv/bin/python install --quiet "$@"
  fi
}

if ! [[ -x .venv/bin/python ]] || ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  rm -rf .venv
  say "making .venv with $("$python" --version)"
  if ! "$python" -m venv .venv >"$scratch/venv.log" 2>&1; then
    rm -rf .venv
    if ! "$python" -m pip --version >/dev/null 2>&1; then
      say "this Python has neither venv nor pip; install one of them (Debian: apt-get install python3-venv)"
      exit 1
    fi
    say "there is no venv module here; using uv instead"
    "$python" -m pip install --quiet --target "$scratch/uv" --require-hashes -r "$scratch/uv.txt"
    uv=$scratch/uv/bin/uv
    "$uv" venv --quiet --no-project --python "$python" .venv
  fi
fi
uv=${uv:-.venv/bin/uv}
[[ -x $uv ]] || .venv/bin/python -m pip install --quiet --require-hashes -r "$scratch/uv.txt"

say "installing $lock"
if [[ -n $folder ]]; then
  install --require-hashes --target "$folder" -r "$lock"
  echo "$wanted" >"$stamp"
  exit 0
fi
install --require-hashes -r "$lock"
# The build backend stands in the lock too, so nothing is fetched without a hash.
install --no-build-isolation --no-deps -e .
# What nothing uses any more: every build of pyspark leaves half a gigabyte in uv's cache.
"$uv" cache prune --quiet || true
echo "$wanted" >"$stamp"
