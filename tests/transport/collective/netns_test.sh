#!/usr/bin/env bash
# Runs four ranks in three network namespaces, which simulate three hosts on one machine. Two ranks are in the first
# namespace and share memory; the others are reached over encrypted TCP, then over UCX as on a trusted network. All ranks
# must compute the same bits as on one host. Then the test kills a rank, and the others must name it. Needs root and `ip`, else it skips (exit 77).
#
#   netns_test.sh PATH_OF_collective_rank
set -u
program=$1
skip() { echo "SKIPPED: $1"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"
command -v ip >/dev/null || skip "no ip command (iproute2)"

id=$$
folder=$(mktemp -d /tmp/ss-netns-XXXXXX)
spaces=(ssa$id ssb$id ssc$id)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null; done
  wait 2>/dev/null
  for space in "${spaces[@]}"; do ip netns del "$space" 2>/dev/null; done
  ip link del ssbr$id 2>/dev/null
  rm -rf "$folder" /dev/shm/simplescale-*/ss-rank-"$(basename "$folder")"*
}
trap finish EXIT

ip link add ssbr$id type bridge 2>/dev/null || skip "cannot make a bridge"
ip link set ssbr$id up
number=1
for space in "${spaces[@]}"; do
  ip netns add "$space" || skip "cannot make a network namespace"
  ip link add v$number-$id type veth peer name eth0 netns "$space" || skip "cannot make a veth pair"
  ip link set v$number-$id master ssbr$id up
  ip -n "$space" addr add 10.213.7.$number/24 dev eth0
  ip -n "$space" link set eth0 up
  ip -n "$space" link set lo up
  number=$((number + 1))
done
# `ip netns exec` mounts the namespace's own /sys, where UCX looks for interfaces. A chroot whose / is no mount point
# refuses that.
ip netns exec "${spaces[0]}" true || skip "cannot enter a network namespace"

# rank -> namespace
of=("${spaces[0]}" "${spaces[0]}" "${spaces[1]}" "${spaces[2]}")
start() {  # generation scenario
  pids=()
  for rank in 0 1 2 3; do
    ip netns exec "${of[$rank]}" "$program" "$folder" $rank 4 "$1" "$2" 20000 >"$folder/out-$1-$rank" 2>"$folder/err-$1-$rank" &
    pids+=($!)
  done
}
fail() { echo "FAILED: $1"; tail -n 5 "$folder"/out-* "$folder"/err-*; exit 1; }

start 1 all
for pid in "${pids[@]}"; do wait "$pid" || fail "operations across namespaces"; done
# The same operations on one host.
pids=()
for rank in 0 1 2 3; do "$program" "$folder" $rank 4 2 all 20000 >"$folder/out-2-$rank" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || fail "operations on one host"; done
for rank in 0 1 2 3; do
  cmp "$folder/out-1-$rank" "$folder/out-2-$rank" || fail "rank $rank has other bits on other hosts"
done
COLLECTIVE_RANK_TRUSTED=10.213.7.0/24 start 4 all
for pid in "${pids[@]}"; do wait "$pid" || fail "operations over UCX"; done
for rank in 0 1 2 3; do
  cmp "$folder/out-4-$rank" "$folder/out-2-$rank" || fail "rank $rank has other bits over UCX"
done

start 3 endless
for rank in 0 1 2 3; do
  for ((i = 0; i < 400; ++i)); do grep -q started "$folder/out-3-$rank" && break; sleep 0.05; done
  grep -q started "$folder/out-3-$rank" || fail "rank $rank did not start"
done
kill -9 "${pids[3]}"
for rank in 0 1 2; do
  wait "${pids[$rank]}" && fail "rank $rank ended without an error"
  grep -q unavailable "$folder/out-3-$rank" || fail "rank $rank did not report the loss as unavailable"
done
grep -q "rank 3" "$folder"/out-3-[012] || fail "no rank named rank 3"
echo "passed: same bits on 3 hosts, encrypted and over UCX, and on one; the loss of a host's rank is named"
