#!/usr/bin/env bash
# Checks the GPU path and measures its speed, in ten minutes at most. Prints a table and writes the figures to a JSON file.
# Exits 1 if a part fails, and 77 if every part is skipped, as without a GPU.
#   tests/gpu/checklist.sh [--build build/release] [--peers FOLDER] [--out gpu-checklist.json] [--part NAME]...
exec python3 -B "$(dirname "$(readlink -f "$0")")/checklist.py" "$@"
