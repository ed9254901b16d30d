#!/usr/bin/env bash
# Fetch a Docker engine for the tests, which start and stop it themselves: Debian's packages, unpacked into a folder
# of the cache. Nothing is installed, no service is started, and an engine that the machine has is left alone.
set -euo pipefail

place="${1:?usage: prepare.sh FOLDER}"
[ ! -x "$place/usr/sbin/dockerd" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "docker tests need root, and apt to fetch Docker's engine; they were NOT run" >&2
    exit 1
fi
echo "docker: fetching an engine into $place" >&2
half="$place.half"
rm -rf "$half"
mkdir -p "$half/archives/partial"
chmod 755 "$half" "$half/archives"
apt-get update -qq >&2
# What docker.io needs and the machine lacks comes along; iptables and the like stay unused.
apt-get -y -qq --no-install-recommends --download-only --reinstall \
    -o Dir::Cache::archives="$half/archives" -o APT::Sandbox::User=root install docker.io containerd runc >&2
for package in "$half"/archives/*.deb; do dpkg-deb -x "$package" "$half"; done
rm -rf "$half/archives" "$half/usr/share"
mv "$half" "$place"
