#!/usr/bin/env bash
# Make a release of this checkout: scripts/release.sh VERSION [--dry-run] [--skip-tests]
#
# Refuses a dirty tree, a tag that exists, and a version that refstore/__init__.py or CHANGELOG.md does not name.
# Builds the sdist and the wheel into dist/, checks them (scripts/check_dist.py), runs the tests (`make test-release`), and
# tags vVERSION in this repository. Pushes nothing.
# --dry-run: do everything but the tag. --skip-tests: for a commit whose tests have just passed elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "release: $*" >&2; exit 1; }

version='' dry_run='' skip_tests=''
for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=yes ;;
    --skip-tests) skip_tests=yes ;;
    -*) fail "$argument is not an option; use --dry-run or --skip-tests" ;;
    *)
      [[ -z $version ]] || fail "there are two versions, $version and $argument; give one"
      version=$argument
      ;;
  esac
done
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?$ ]] ||
  fail "'$version' is not a version; say for example: make release VERSION=1.2.3"
git rev-parse --git-dir >/dev/null || fail "a release needs git, and a clone of the repository"
[[ -z $(git status --porcelain) ]] || fail "the tree has uncommitted changes; commit or remove them first"
grep -qxF "__version__ = \"$version\"" refstore/__init__.py ||
  fail "refstore/__init__.py names another version; set __version__ = \"$version\" and commit it"
grep -qE "^## \[?${version//./\\.}\]?( |\$)" CHANGELOG.md ||
  fail "CHANGELOG.md has no section '## $version'; rename '## Unreleased' and commit it"
! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null ||
  fail "the tag v$version exists already; raise the version"

python=${PYTHON:-.venv/bin/python}
rm -rf dist
"$python" -m hatchling build --directory dist
"$python" scripts/check_dist.py dist "$version"
if [[ -n $skip_tests ]]; then
  echo "release: the tests were skipped" >&2
else
  "${MAKE:-make}" test-release
fi
[[ -z $(git status --porcelain) ]] || fail "the checks changed the tree; look at: git status"

if [[ -n $dry_run ]]; then
  echo "release: $version could be released; nothing was tagged"
  exit 0
fi
git tag --annotate "v$version" --message "refstore $version"
echo "release: tagged v$version; the files are in dist/. To publish it: git push origin v$version, and upload dist/*"
