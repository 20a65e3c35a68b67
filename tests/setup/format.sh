#!/usr/bin/env bash
# Checks that every C++ and CUDA file of the repository is formatted by clang-format. To repair a file:
# clang-format -i FILE. Skips visibly (exit 77) without clang-format.
set -u
cd "$(dirname "$0")/../.." || exit 1
command -v clang-format >/dev/null || { echo "SKIPPED: no clang-format"; exit 77; }
git -c safe.directory='*' ls-files -z '*.cpp' '*.hpp' '*.inl' '*.cu' '*.cuh' |
  xargs -0 clang-format --dry-run -Werror
