#!/usr/bin/env bash
# Fetch a Docker engine for the tests, which start and stop it themselves, and a compiler for one of their images:
# Debian's packages, unpacked into a folder of the cache. Nothing is installed, no service is started, and an engine
# that the machine has is left alone.
set -euo pipefail

place="${1:?usage: prepare.sh FOLDER ROOT}"
root="${2:?usage: prepare.sh FOLDER ROOT (the file system that images are made of)}"
compiler="$place.compiler"
[ ! -x "$place/usr/sbin/dockerd" ] || [ ! -f "$compiler/files.tar" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "docker tests need root, and apt to fetch Docker's engine; they were NOT run" >&2
    exit 1
fi
apt-get update -qq >&2

# Packages and what they need, unpacked into a folder: `fetch FOLDER OPTION... PACKAGE...`
fetch() {
    local folder="$1"
    shift
    rm -rf "$folder"
    mkdir -p "$folder/archives/partial"
    chmod 755 "$folder" "$folder/archives"
    apt-get -y -qq --no-install-recommends --download-only \
        -o Dir::Cache::archives="$folder/archives" -o APT::Sandbox::User=root "$@" >&2
    for package in "$folder"/archives/*.deb; do dpkg-deb -x "$package" "$folder"; done
    rm -rf "$folder/archives" "$folder/usr/share"
}

if [ ! -x "$place/usr/sbin/dockerd" ]; then
    echo "docker: fetching an engine into $place" >&2
    # What docker.io needs and the machine lacks comes along; iptables and the like stay unused.
    fetch "$place.half" --reinstall install docker.io containerd runc
    mv "$place.half" "$place"
fi
if [ ! -f "$compiler/files.tar" ]; then
    echo "docker: fetching a compiler into $compiler" >&2
    # What the images lack of it, for torch's inductor. /lib is a link in them and must stay one.
    fetch "$compiler.half" -o Dir::State::status="$root/var/lib/dpkg/status" install g++ libpython3-dev
    [ ! -d "$compiler.half/lib" ] || cp -a "$compiler.half/lib/." "$compiler.half/usr/lib/"
    mkdir -p "$compiler"
    tar -C "$compiler.half" --exclude='lib*san*' --exclude=lto1 --exclude='lto-dump*' --exclude='gprofng*' \
        --exclude='libpython*.a' -cf "$compiler/files.half" usr
    mv "$compiler/files.half" "$compiler/files.tar"
    rm -rf "$compiler.half"
fi
