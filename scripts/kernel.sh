#!/usr/bin/env bash
# Runs a command on Debian's own kernel (6.1 on Debian 12) in a virtual machine that has this machine's files, read-only, and nothing
# of its network: for what depends on the kernel's age. Without hardware virtualisation too, since it is emulated: slow, but the same
# wherever it runs. The kernel comes as a package and is not installed.
# usage: kernel.sh COMMAND...      in the current directory, as root; KERNEL_SECONDS (600) ends it
set -euo pipefail
[ $# -gt 0 ] || { sed -n '5p' "$0"; exit 2; }
work=$(cd "$(dirname "$0")/.." && pwd)/target/kernel
mkdir -p "$work"
cd "$work"

package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
package=$(apt-cache policy "$package-unsigned" 2>/dev/null | grep -q Candidate && echo "$package-unsigned" || echo "$package")
if [ "$(cat name 2>/dev/null)" != "$package" ]; then
  rm -rf image ./*.deb
  apt-get -o APT::Sandbox::User=root download -qq "$package"
  dpkg-deb -x ./*.deb image
  echo "$package" >name
fi

rm -rf first
mkdir -p first/{bin,proc,sys,dev,below,above,root,modules}
cp "$(command -v busybox)" first/bin/
order=
# a module behind those that it needs; one that is not there is part of the kernel
add() {
  local file needs need
  case " $order " in *" $1 "*) return ;; esac
  file=$(find image/lib/modules -name "$1.ko*" | head -1)
  [ -n "$file" ] || return 0
  case $file in
  *.xz) xz -dc "$file" >"first/modules/$1.ko" ;;
  *) cp "$file" "first/modules/$1.ko" ;;
  esac
  needs=$(tr '\0' '\n' <"first/modules/$1.ko" | sed -n 's/^depends=//p')
  for need in ${needs//,/ }; do add "$need"; done
  order="$order $1"
}
# what it has before it has its files, and what the laboratory needs
for module in virtio_pci 9pnet_virtio 9p overlay veth sch_ingress cls_bpf; do add $module; done
cat >first/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
for module in MODULES; do insmod /modules/$module.ko; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose files /below
mount -t tmpfs above /above && mkdir /above/changed /above/work
mount -t overlay -o lowerdir=/below,upperdir=/above/changed,workdir=/above/work all /root
for place in proc sys dev; do mount --move /$place /root/$place; done
mount -t bpf bpf /root/sys/fs/bpf
mkdir -p /root/dev/pts /root/dev/shm && mount -t devpts pts /root/dev/pts && mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run && ip link set lo up
HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot /root /bin/bash COMMAND
echo "ended with $?"
poweroff -f
INIT
sed -i "s#MODULES#$order#; s#COMMAND#$work/command#" first/init
chmod +x first/init
(cd first && find . | cpio -o -H newc --quiet | gzip -1) >first.gz
{
  printf 'uname -r\ncd %q\n' "$OLDPWD"
  printf '%q ' "$@"
  echo
} >command
timeout "${KERNEL_SECONDS:-600}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 6144 -nographic -no-reboot \
  -nic none -kernel image/boot/vmlinuz-* -initrd first.gz -append "console=ttyS0 quiet panic=1" \
  -fsdev local,id=files,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=files,mount_tag=files \
  </dev/null | tee log
grep -aq '^ended with 0' log
