#!/bin/bash
# Installs Debian's nginx, without starting it as a service.
# usage: test/bench/gateway/nginx.sh
set -u -e -o pipefail
[ ! -x /usr/sbin/nginx ] || exit 0
command -v apt-get >/dev/null || { echo "bench gateway: nginx is missing, and no apt-get to install it with" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "bench gateway: nginx is missing; run as root: apt-get install --no-install-recommends nginx" >&2; exit 1; }
export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive # invoke-rc.d starts no service in runlevel 1
apt-get update -q && apt-get install -y -q --no-install-recommends nginx
