# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: builds Debian packages, in the cache.
# shellcheck shell=bash

# Those of debian/control; build-essential, which it need not name, comes first.
need_package_tools() {
	need "building packages" dpkg-dev gcc libc6-dev make debhelper dh-dkms dh-python \
		pybuild-plugin-pyproject python3-all python3-click python3-click-man \
		python3-prometheus-client python3-rich python3-setuptools python3-tomli-w
}

# What goes into packages: packaged_files TREE
packaged_files() {
	(cd "$1" && find Kbuild COPYING README.md debian dkms.conf module userspace \( -type f -o -type l \) \
		! -path '*/__pycache__/*' ! -path '*/build/*' ! -name '*.o' -print0 | sort -z)
}

# The packages of a tree, in a folder of their own: make_packages TREE DEST
make_packages() {
	local tree=$1 dest=$2 new=${2%/*}/new
	rm -rf "$dest" "$new"
	mkdir -p "$new/src"
	packaged_files "$tree" | (cd "$tree" && xargs -0 cp -a --parents -t "$new/src")
	# Debian's own tools alone, whatever Python the user has.
	(cd "$new/src" && env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
		HOME="$new" dpkg-buildpackage --build=binary --unsigned-changes)
	rm -rf "$new/src"
	mv "$new" "$dest"
}

packages_key() {
	{
		cat "${BASH_SOURCE[0]}"
		packaged_files "$TREE" | (cd "$TREE" && xargs -0 sha256sum)
	} | hash_of
}

# Sets PACKAGES to the folder of the packages of this tree.
packages() {
	PACKAGES=$CACHE/packages/$(packages_key)
	need_package_tools
	[ -d "$PACKAGES" ] || with_lock packages step "packages" packages make_packages "$TREE" "$PACKAGES"
}

# Errors and warnings both fail.
lint_packages() {
	packages
	lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$PACKAGES"/*.changes
}

# ---- Kernels with the hooks

need_kernel_package_tools() {
	need_kernel_tools
	need "packages of kernels" dpkg-dev debhelper cpio rsync dwarves
	[ "$1" != cloud ] || need "Debian's configuration" "linux-config-$SERIES"
}

# Configure a patched tree as a distribution has it, and with the hooks: distribution_config FILE TREE
distribution_config() {
	case $1 in
	*.xz) xz -dc "$1" >"$2/.config" ;;
	*) cp "$1" "$2/.config" ;;
	esac
	# The keys that Debian signs with are not there.
	"$2/scripts/config" --file "$2/.config" --enable MM_POLICY --set-str SYSTEM_TRUSTED_KEYS "" \
		--set-str MODULE_SIG_KEY certs/signing_key.pem
	kmake "$2" olddefconfig
	grep -q '^CONFIG_MM_POLICY=y' "$2/.config"
}

# A patched tree, configured: configured_tree lean|cloud|FILE TREE
configured_tree() {
	patched_tree patched "$2"
	echo -mmpolicy >"$2/localversion"
	case $1 in
	lean) configure patched "$2" ;;
	cloud) distribution_config "/usr/src/linux-config-$SERIES/config.amd64_none_cloud-amd64.xz" \
		"$2" ;;
	*) distribution_config "$1" "$2" ;;
	esac
}

# make_kernel_packages CONFIG DEST
make_kernel_packages() {
	local dest=$2 new=${2%/*}/new-kernel
	rm -rf "$dest" "$new"
	configured_tree "$1" "$new/src"
	kmake "$new/src" KDEB_PKGVERSION="$(source_version)" DPKG_FLAGS=-d bindeb-pkg
	rm -rf "$new/src" "$new"/*-dbg_*.deb
	mv "$new" "$dest"
}

# Sets KERNEL_PACKAGES to the folder of the packages of a kernel: lean, cloud or a file
kernel_packages() {
	local key
	need_kernel_package_tools "$1"
	need_source
	key=$({ kernel_key patched; echo "$1"; [ ! -f "$1" ] || cat "$1"; } | hash_of)
	KERNEL_PACKAGES=$CACHE/packages/kernel-$key
	[ -d "$KERNEL_PACKAGES" ] || with_lock packages step "packages of the kernel" kernel-packages \
		make_kernel_packages "$1" "$KERNEL_PACKAGES"
}

# ---- A Debian of its own for guests, with systemd

# What the packages need beside what is always there.
ROOT_PACKAGES=systemd-sysv,dkms,kmod,python3-click,python3-prometheus-client,python3-rich
ROOT_PACKAGES+=,python3-tomli-w,libelf1
# The service of the tutorial.
ROOT_PACKAGES+=,redis-server
# What Debian's kernels and their headers need; and to sign modules.
ROOT_PACKAGES+=,linux-base,tiny-initramfs,pahole,openssl

need_root_tools() {
	need "a Debian of its own for guests" apt mmdebstrap
}

# Where this host has its packages from.
debian_sources() {
	# shellcheck disable=SC2016 # apt replaces these
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
		"Created-By: Packages" "Origin: Debian"
}

make_root() {
	rm -rf "$1.new"
	debian_sources | as_root mmdebstrap --variant=minbase --include="$ROOT_PACKAGES" \
		--aptopt='APT::Install-Recommends "false"' "" "$1.new" -
	mv "$1.new" "$1"
}

# Sets ROOT to the folder of a Debian with systemd, in which nothing of ours is.
root() {
	need_root_tools
	ROOT=$CACHE/root/$({ debian_sources; echo "$ROOT_PACKAGES"; } | hash_of)
	mkdir -p "$CACHE/root"
	[ -d "$ROOT" ] || with_lock root step "a Debian for guests" root make_root "$ROOT"
}
