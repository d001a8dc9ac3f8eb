#!/usr/bin/env bash
# Sees to the Debian packages that a task needs: installs what is missing when root, else names it and stops.
# usage: deps.sh build | demo | test | browser | kernel
set -euo pipefail

build="clang gcc libbpf-dev libc6-dev linux-libc-dev llvm make"
demo="$build bind9-dnsutils curl ethtool iproute2"
test="$demo apache2-utils bpftool dnsperf git iputils-ping knot knot-dnsutils ldnsutils libmemcached-tools memcached nghttp2-client nginx nsd procps python3-pymemcache strace tshark wget wrk"
browser="$demo chromium"
kernel="$test busybox-static cpio qemu-system-x86"

case ${1:-} in
build | demo | test | browser | kernel) wanted=${!1} ;;
*) sed -n '2,3p' "$0"; exit 2 ;;
esac

missing=
for package in $wanted; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "missing Debian packages; as root run: apt-get update && apt-get install$missing" >&2
    # without root the demo runs on kernel sockets and shows what it can: only what the build needs must be there
    [ "$1" = demo ] || exit 1
    for package in $missing; do
      case " $build " in *" $package "*) exit 1 ;; esac
    done
    missing=
  fi
fi
if [ -n "$missing" ]; then
  echo "installing$missing"
  # name servers that the tests compare with must not start as services of this machine
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
  fi
  apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
fi

command -v cargo >/dev/null || { echo "missing Rust: install it with rustup (https://rustup.rs) or your distribution's packages, 1.91 or newer" >&2; exit 1; }
