#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# smaps has "Referenced" for the memory that was used since clear_refs, and tools estimate working
# sets by it, or by what else reads accessed bits. A good guess is that a program which uses one page
# of a folio of 64 kB has 4 kB referenced, as on x86-64. On arm64 the kernel folds the 16 entries of
# such a folio into one block (contpte), reads the accessed bit of the block from any of them, and
# clears all at once: it says 64 kB. With pages of 4 kB, both say 4 kB. So larger folios make a
# working set look up to 16 times as large there, though the program does the same, and one page in
# use hides that the other 15 are not. QEMU sets the bit for one page; hardware may set any.
# Seen on Debian's 6.12.117 for clouds, in QEMU 7.2, one page of 1 MiB used after clear_refs:
#   x86_64: folios of 4 kB: 4 kB referenced; of 64 kB: 4 kB
#   aarch64: folios of 4 kB: 4 kB referenced; of 64 kB: 64 kB
# The kernels and busybox come from Debian; both QEMUs, gcc and gcc-aarch64-linux-gnu have to be installed. Exits
# with 1 if a kernel behaves otherwise, with 2 if something for the run is missing.
set -euo pipefail
release=6.12.117+deb12-cloud version=6.12.117-1~deb12u1
busybox="busybox-static:amd64=1:1.35.0-4+deb12u1+b1"	# for its cpio
for tool in apt-get dpkg-deb gcc aarch64-linux-gnu-gcc qemu-system-{x86_64,aarch64}; do
	command -v "$tool" >/dev/null || { echo "missing: $tool"; exit 2; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder"

# An apt for both architectures in this folder, with the sources of this machine.
mkdir -p apt/lists/partial apt/archives/partial
# shellcheck disable=SC2016 # apt replaces these
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
	"Created-By: Packages" "Origin: Debian" >apt/sources.list
: >apt/status
cat >apt/apt.conf <<END
Dir::Etc::sourcelist "$folder/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt";
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "root";
END
export APT_CONFIG=$folder/apt/apt.conf
if ! apt-get update -qq || ! apt-get download -qq "linux-image-$release-amd64=$version" \
	"linux-image-$release-arm64:arm64=$version" "$busybox"; then
	echo "no package"
	exit 2
fi
for package in *.deb; do
	dpkg-deb -x "$package" root
done

cat >init.c <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/utsname.h>
#include <unistd.h>

#define THP "/sys/kernel/mm/transparent_hugepage/"
enum { SIZE = 1 << 20, PAGE = 4096 };

static void put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);

	if (write(file, text, strlen(text)) < 0)
		perror(path);
	close(file);
}

/* Returns kB that are referenced after one page of SIZE was used. */
static int referenced(const char *size)
{
	char *memory = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	unsigned long from, to, at;
	char line[300];
	FILE *smaps;
	int kb = -1, here = 0;

	put(THP "hugepages-64kB/enabled", size);
	memory += -(unsigned long)memory % SIZE;
	at = (unsigned long)memory;
	for (int i = 0; i < SIZE; i += PAGE)
		memory[i] = 1;
	put("/proc/self/clear_refs", "1");
	mprotect(memory, SIZE, PROT_READ);	/* the CPU forgets the entries of its TLB */
	mprotect(memory, SIZE, PROT_READ | PROT_WRITE);
	memory[SIZE / 2 + 5 * PAGE] = 2;
	smaps = fopen("/proc/self/smaps", "r");
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = from <= at && at < to;
		else if (here)
			sscanf(line, "Referenced: %d", &kb);
	}
	fclose(smaps);
	return kb;
}

int main(void)
{
	struct utsname name;
	int small, large;

	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	put(THP "enabled", "never");
	small = referenced("never");
	large = referenced("always");
	uname(&name);
	printf("\n%s: folios of 4 kB: %d kB referenced; of 64 kB: %d kB\n", name.machine, small,
	       large);
	fflush(stdout);
	reboot(RB_POWER_OFF);
}
C

# boot ARCH COMPILER CONSOLE QEMU...
boot() {
	local arch=$1 compiler=$2 console=$3
	shift 3
	mkdir -p "$arch"/{dev,proc,sys}
	"$compiler" -O1 -static -o "$arch/init" init.c
	(cd "$arch" && find . | ../root/bin/busybox cpio -o -H newc 2>/dev/null) >"$arch.initrd"
	timeout 300 "$@" -m 512 -nographic -no-reboot -nodefaults -serial stdio \
		-kernel root/boot/vmlinuz-*-"$arch" -initrd "$arch.initrd" \
		-append "console=$console quiet panic=-1" | tr -d '\r' | grep -a '^[a-z0-9_]*: folios'
}

{
	boot amd64 gcc ttyS0 qemu-system-x86_64
	boot arm64 aarch64-linux-gnu-gcc ttyAMA0 qemu-system-aarch64 -M virt -cpu neoverse-n1
} | tee found
grep -q '^x86_64: folios of 4 kB: 4 kB referenced; of 64 kB: 4 kB$' found
grep -q '^aarch64: folios of 4 kB: 4 kB referenced; of 64 kB: 64 kB$' found
