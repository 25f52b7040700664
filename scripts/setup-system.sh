#!/usr/bin/env bash
# Install what tests and benchmarks start and pip does not have: Debian's Redis, PostgreSQL, Ceph, Chromium, promtool and nginx. Needs root, or sudo without a password.
# Without it, says which tests will be skipped; that is an error in CI, where nothing may be skipped. Starts no service.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

missing=''
for package in redis-server redis-sentinel postgresql pgbouncer radosgw ceph-mon ceph-osd chromium-headless-shell prometheus nginx; do
  program=$package
  [[ $package != prometheus ]] || program=promtool
  [[ $package != postgresql ]] || program=pg_lsclusters
  command -v "$program" >/dev/null || missing="$missing $package"
done
[[ -n $missing ]] || exit 0

give_up() {
  echo "setup-system: $1; without$missing the tests that need them are skipped, by name and counted" >&2
  [[ ${CI:-} == true ]] && exit 1
  exit 0
}

as_root=''
command -v apt-get >/dev/null || give_up "this is not a Debian-like system"
if [[ $(id -u) -ne 0 ]]; then
  sudo -n true 2>/dev/null || give_up "installing packages needs root"
  as_root='sudo -n'
fi

echo "setup-system: installing$missing" >&2
log=$(mktemp)
# Debian starts a service as it is installed, unless policy-rc.d says no; the tests start their own, on their own ports.
policy=/usr/sbin/policy-rc.d
made_policy=
cleanup() {
  [[ -z $made_policy ]] || $as_root rm -f "$policy"
  rm -f "$log"
}
trap cleanup EXIT
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
  $as_root chmod +x "$policy"
  made_policy=yes
fi

install() {
  # A machine that just booted may be updating itself: wait for the lock, but not for ever.
  $as_root apt-get -o DPkg::Lock::Timeout=180 update -qq &&
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=180 install -y -qq --no-install-recommends $missing
}
if ! install >"$log" 2>&1 </dev/null; then
  tail -20 "$log" >&2
  give_up "apt-get could not install them"
fi
# Nor are they to start with the machine, where it was this script that brought them.
if [[ -d /run/systemd/system ]]; then
  for package in $missing; do
    case $package in redis-* | postgresql | pgbouncer | prometheus | nginx) $as_root systemctl disable --quiet "$package" 2>/dev/null || true ;; esac
  done
fi
