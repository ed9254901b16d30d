#!/usr/bin/env bash
# Install what the lab needs on this machine, as root on Debian or Ubuntu; elsewhere say what is missing.
set -euo pipefail

declare -A from=([debootstrap]=debootstrap [systemd-nspawn]=systemd-container [nft]=nftables [ip]=iproute2
    [nsenter]=util-linux [ssh-keygen]=openssh-client)
missing=()
for program in "${!from[@]}"; do
    command -v "$program" >/dev/null || missing+=("${from[$program]}")
done
if [ "$(id -u)" != 0 ]; then
    echo "lab: it needs root: namespaces, mounts and networks are made" >&2
    exit 1
fi
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        echo "lab: please install: ${missing[*]} (names of Debian packages)" >&2
        exit 1
    fi
    echo "lab: installing ${missing[*]}" >&2
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi
