#!/usr/bin/env bash
# Checks the GPU path and measures its speed, in less than ten minutes. Prints a table and writes the figures to a JSON
# file, also if a part fails or a signal ends it. Exits 1 if a part fails, and 77 if every part is skipped, as without a GPU.
#   tests/gpu/checklist.sh [--build build/release] [--peers FOLDER] [--out gpu-checklist.json] [--seconds 570] [--part NAME]...
exec python3 -B "$(dirname "$(readlink -f "$0")")/checklist.py" "$@"
