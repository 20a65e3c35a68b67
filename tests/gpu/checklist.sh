#!/usr/bin/env bash
# What the first person with a GPU runs: is the GPU path right, and how fast is it? Ten minutes at most; a table, and a JSON
# file beside it. Without a GPU it says so, part by part, and exits 77.
#   tests/gpu/checklist.sh [--build build/release] [--peers ../shared/peers] [--out gpu-checklist.json] [--part NAME]...
exec python3 -B "$(dirname "$(readlink -f "$0")")/checklist.py" "$@"
