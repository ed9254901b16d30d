#!/usr/bin/env bash
# Install what the enrolment tests need, as root on Debian or Ubuntu: an sshd, which they start themselves, as
# whoever runs them; and strace, for the test of the kill path. No service is started. Elsewhere, or without root,
# those tests are skipped, and this says so.
set -euo pipefail

missing=()
PATH="$PATH:/usr/sbin" command -v sshd >/dev/null || missing+=(openssh-server)
command -v ssh-keygen >/dev/null || missing+=(openssh-client)
command -v openssl >/dev/null || missing+=(openssl)
command -v strace >/dev/null || missing+=(strace)
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "some tests will be skipped; they need: ${missing[*]} (names of Debian packages)" >&2
    exit 0
fi
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    # What a package would start at its installation asks this first; 101: not allowed.
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
    trap 'rm -f $policy' EXIT
fi
apt-get update -qq >&2
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
