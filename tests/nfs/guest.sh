#!/usr/bin/env bash
# Runs a command on a real NFS mount, without NFS in this machine's kernel: boots user-mode Linux (a kernel
# as a process) on this machine's files, read only, with an NFS 4.2 server and two clients of it.
#
#     guest.sh [COMMAND...]        default: tests/nfs/clients.py, which shows what one client sees of the other
#
# In the guest, /mnt/a and /mnt/b are two mounts of one export, each with a cache of its own, and /mnt/exported
# is the server's folder. Elsewhere the command can write only to $TMPDIR, which is lost. Root only. The
# Debian packages it needs are downloaded and unpacked under ${SIMPLESCALE_NFS:-.deps/nfs}; nothing is installed.
# The guest has one CPU and slow system calls: a command takes five to ten times as long. Not part of CI.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
unpacked=$(realpath -m "${SIMPLESCALE_NFS:-$here/../../.deps/nfs}")
packages="user-mode-linux nfs-kernel-server nfs-common libnfsidmap1 kmod libwrap0 libtirpc3 libevent-core-2.1-7"

if [ ! -x "$unpacked/usr/bin/linux.uml" ]; then
  mkdir -p "$unpacked"
  downloads=$(mktemp -d)
  (cd "$downloads" && apt-get download -qq $packages)
  for package in "$downloads"/*.deb; do dpkg -x "$package" "$unpacked"; done
  rm -r "$downloads"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
truncate -s 4G "$scratch/disk"
mkfs.ext4 -q "$scratch/disk"
{
  echo '#!/bin/bash'
  declare -p unpacked
  echo "cd $(printf %q "$PWD")"
  echo "command=($(printf '%q ' "${@:-$here/clients.py}"))"
  cat "$here/guest_init.sh"
} > "$scratch/init"
chmod 755 "$scratch" "$scratch/init"
"$unpacked/usr/bin/linux.uml" mem="${SIMPLESCALE_NFS_MEMORY:-2G}" root=/dev/root rootfstype=hostfs rootflags=/ ro quiet \
  init="$scratch/init" ubd0="$scratch/disk" con=null con0=null,fd:1 < /dev/null 2> "$scratch/errors" | tee "$scratch/output" || true
grep -q '^guest: exit 0' "$scratch/output" || { tail -5 "$scratch/errors" >&2; exit 1; }
