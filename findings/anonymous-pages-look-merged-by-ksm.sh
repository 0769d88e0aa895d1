#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# On Linux 6.12, /proc/kpageflags has KPF_KSM (bit 21, "page is merged by KSM") for every anonymous
# page, also where KSM has never run. A good guess is that the bit is set for merged pages alone.
# The flag of the mapping that the kernel tests is two bits, of which one stands for anonymous
# memory, and one bit of the two is enough for it. A tool that leaves merged pages alone, as they
# are shared, leaves all memory alone there. /sys/kernel/mm/ksm/pages_shared and the KSM line of
# smaps are right.
# Seen on Debian's 6.12.117 (linux-image-6.12.117+deb12-cloud-amd64), in QEMU 7.2:
#   anonymous pages: 3, with KPF_KSM: 3; pages_shared 0, run 0
# Seen on Linux 6.18.44, where it is mended:
#   anonymous pages: 3, with KPF_KSM: 0; pages_shared 0, run 0
# The kernel and busybox come from Debian, qemu-system-x86_64 has to be installed. Exits with 1 if
# 6.12.117 behaves otherwise, with 2 if something for the run is missing.
set -euo pipefail
kernel=linux-image-6.12.117+deb12-cloud-amd64=6.12.117-1~deb12u1
busybox="busybox-static=1:1.35.0-4+deb12u1+b1"
for tool in apt-get dpkg-deb qemu-system-x86_64; do
	command -v "$tool" >/dev/null || { echo "missing: $tool"; exit 2; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder"
apt-get download -qq -o APT::Sandbox::User=root "$kernel" "$busybox" || { echo "no package"; exit 2; }
for package in *.deb; do
	dpkg-deb -x "$package" root
done
mkdir -p guest/bin guest/proc guest/sys
cp root/bin/busybox guest/bin/
cat >guest/init <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
# Prints the 8 bytes of a file that has one such number for each page.
number() {
	$b dd if="$1" bs=8 skip="$2" count=1 2>/dev/null | $b od -An -tx8 | $b tr -d ' \n'
}
anon=0 merged=0 seen=0
while read -r range rest; do
	case "$rest" in *heap*|*stack*) ;; *) continue ;; esac
	end=$((0x${range#*-})) page=$((0x${range%-*} / 4096))
	while [ $((page * 4096)) -lt $end ] && [ $seen -lt 3 ]; do
		entry=0x$(number /proc/$$/pagemap $page)
		page=$((page + 1))
		[ $((entry >> 63 & 1)) = 1 ] || continue
		flags=0x$(number /proc/kpageflags $((entry & 0x7fffffffffffff)))
		[ $((flags >> 12 & 1)) = 1 ] || continue
		seen=$((seen + 1)) merged=$((merged + (flags >> 21 & 1)))
	done
done </proc/$$/maps
read -r shared </sys/kernel/mm/ksm/pages_shared
read -r run </sys/kernel/mm/ksm/run
echo; echo "kernel: $($b uname -r)"
echo "anonymous pages: $seen, with KPF_KSM: $merged; pages_shared $shared, run $run"
$b poweroff -f
INIT
chmod 755 guest/init
(cd guest && find . | ./bin/busybox cpio -o -H newc 2>/dev/null) >initrd
timeout 300 qemu-system-x86_64 -m 512 -nographic -no-reboot -nodefaults -serial stdio \
	-kernel root/boot/vmlinuz-* -initrd initrd -append "console=ttyS0 quiet panic=-1" |
	tr -d '\r' | grep -aE '^(kernel|anonymous pages): ' | tee found
grep -q '^anonymous pages: 3, with KPF_KSM: 3; pages_shared 0, run 0$' found
