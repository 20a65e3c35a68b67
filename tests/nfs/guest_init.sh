# The guest's first process (guest.sh): mounts, NFS server, two clients, the command.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LD_LIBRARY_PATH=$unpacked/usr/lib/x86_64-linux-gnu:$unpacked/lib/x86_64-linux-gnu
mount -t proc proc /proc
mount -t sysfs sys /sys
for folder in /run /mnt /var/lib /etc/exports.d; do
  [ -d $folder ] && mount -t tmpfs tmp $folder
done
mkdir -p /dev/shm && mount -t tmpfs tmp /dev/shm
export TMPDIR=/run/tmp; mkdir -p $TMPDIR
ip link set lo up 2> /dev/null || ifconfig lo up

# modprobe wants lib/modules/VERSION
mkdir -p /run/modules/lib/modules /run/bin
ln -s "$unpacked"/usr/lib/uml/modules/* /run/modules/lib/modules/
ln -s "$unpacked/bin/kmod" /run/bin/modprobe
for module in nfsv4 nfsd; do /run/bin/modprobe -d /run/modules $module; done
echo Y > /sys/module/nfs/parameters/nfs4_disable_idmapping

mkdir -p /mnt/exported /mnt/a /mnt/b /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs /run/nfs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t ext4 /dev/ubda /mnt/exported
mount -t nfsd nfsd /proc/fs/nfsd
# Both mounts are one client to the server: without this it would give it delegations and not recall them.
echo 0 > /proc/sys/fs/leases-enable
server="$unpacked/usr/sbin"
"$server/exportfs" -o rw,no_root_squash,insecure,fsid=0,no_subtree_check 127.0.0.1:/mnt/exported 2> /dev/null
"$server/rpc.mountd" 2> /dev/null
"$server/rpc.nfsd" -N 3 -G 10 -L 10 -H 127.0.0.1 4
for client in a b; do
  "$unpacked/sbin/mount.nfs4" 127.0.0.1:/ /mnt/$client -o vers=4.2,nosharecache || echo "guest: cannot mount /mnt/$client"
done
unset LD_LIBRARY_PATH
if mountpoint -q /mnt/a && mountpoint -q /mnt/b; then
  "${command[@]}"
  echo "guest: exit $?"
fi
sync
echo o > /proc/sysrq-trigger
sleep 10
