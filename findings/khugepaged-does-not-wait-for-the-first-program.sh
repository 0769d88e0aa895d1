#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# khugepaged sleeps for scan_sleep_millisecs (10 s) between two scans. A good guess is that a program
# that calls MADV_HUGEPAGE on memory in small pages keeps these for seconds. If no other program is
# registered, khugepaged waits without a time limit, the call wakes it, and it scans 4096 pages at
# once: 2 MB pages are there within a fraction of a second. For the next program, with the first
# still there, the guess is right. So a measurement of MADV_COLLAPSE that undoes MADV_NOHUGEPAGE by
# MADV_HUGEPAGE may find its memory collapsed, and time calls that have nothing left to do.
# Seen on Debian's 6.12.117 (linux-image-6.12.117+deb12-cloud-amd64), in QEMU 7.2:
#   scan_sleep_millisecs 10000; after 1 s: first program 16384 kB in 2 MB pages, second 0 kB
# The kernel and busybox come from Debian; qemu-system-x86_64 and gcc have to be installed. Exits
# with 1 if 6.12.117 behaves otherwise, with 2 if something for the run is missing.
set -euo pipefail
kernel=linux-image-6.12.117+deb12-cloud-amd64=6.12.117-1~deb12u1
busybox="busybox-static=1:1.35.0-4+deb12u1+b1"
for tool in apt-get dpkg-deb gcc qemu-system-x86_64; do
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
mkdir -p guest/bin guest/dev guest/proc guest/sys
cp root/bin/busybox guest/bin/
cat >asks.c <<'C'
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
	size_t size = 16 << 20, huge = 2 << 20;
	char *memory = mmap(0, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memory += -(uintptr_t)memory % huge;
	madvise(memory, size, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < size; at += 4096)
		memory[at] = 1;
	if (madvise(memory, size, MADV_HUGEPAGE))
		return 1;
	for (;;)
		pause();
}
C
gcc -O1 -static -o guest/bin/asks asks.c
cat >guest/init <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
thp=/sys/kernel/mm/transparent_hugepage
echo madvise >$thp/enabled
# Starts the program; prints what it has in 2 MB pages a second after it asked.
huge() {
	/bin/asks &
	until $b grep -q ' hg' /proc/$!/smaps; do $b usleep 20000; done
	$b sleep 1
	$b awk '/^AnonHugePages/ { print $2 }' /proc/$!/smaps_rollup
}
$b sleep 3
huge >/first
huge >/second
read -r sleep <$thp/khugepaged/scan_sleep_millisecs
echo; echo "kernel: $($b uname -r)"
echo "scan_sleep_millisecs $sleep; after 1 s: first program $($b cat /first) kB in 2 MB pages," \
	"second $($b cat /second) kB"
$b poweroff -f
INIT
chmod 755 guest/init
(cd guest && find . | ./bin/busybox cpio -o -H newc 2>/dev/null) >initrd
timeout 300 qemu-system-x86_64 -m 512 -nographic -no-reboot -nodefaults -serial stdio \
	-kernel root/boot/vmlinuz-* -initrd initrd -append "console=ttyS0 quiet panic=-1" |
	tr -d '\r' | grep -aE '^(kernel|scan_sleep)' | tee found
grep -q '^scan_sleep_millisecs 10000; after 1 s: first program [1-9][0-9]* kB in .*, second 0 kB$' found
