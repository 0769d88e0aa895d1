# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: Debian's own kernels, as their packages have them.
# shellcheck shell=bash

DISTRO=(cloud)	# flavors

is_distro() { [[ " ${DISTRO[*]} " == *" $1 "* ]]; }

# The release that Debian has now, such as 6.12.117+deb12-cloud-amd64.
distro_release() {
	local name=$1-amd64
	apt-cache depends "linux-headers-$SERIES-$name" 2>/dev/null |
		sed -n 's/^ *Depends: linux-headers-//p'
}

# Image, headers, what these share with other headers, and the tools to build modules.
distro_packages() {
	local base=${1%%-*}
	echo "linux-image-$1" "linux-headers-$1" "linux-headers-$base-common" "linux-kbuild-$base"
}

distro_key() {
	local packages
	read -ra packages <<<"$(distro_packages "$(distro_release "$1")")"
	{
		echo "$RECIPE" "${packages[@]}"
		apt-cache show --no-all-versions "${packages[0]}" | grep '^Version:'
	} | hash_of
}

need_distro_tools() {
	need "building modules for Debian's kernels" apt kmod xz-utils dwarves gcc make sparse ccache
	[ -n "$(distro_release "$1")" ] || as_root apt-get update
	[ -n "$(distro_release "$1")" ] || die "apt knows no headers of Linux $SERIES for $1"
}

# Nothing is installed: the packages are unpacked in the cache.
fetch_distro() {
	local dest=$1 release=$2 packages package
	read -ra packages <<<"$(distro_packages "$release")"
	rm -rf "$dest"
	mkdir -p "$dest/packages"
	(cd "$dest/packages" && apt-get download "${packages[@]}")
	for package in "$dest"/packages/*.deb; do
		dpkg-deb -x "$package" "$dest/root"
	done
	rm -r "$dest/packages"
	mv "$dest/root/boot/vmlinuz-$release" "$dest/bzImage"
	ln -s "root/usr/src/linux-headers-$release" "$dest/src"
	sed -i "s|/usr/src|$dest/root/usr/src|" "$dest/src/Makefile"
	depmod -b "$dest/root" "$release"
}

# As build_kernel(), without building.
get_distro() {
	local flavor=$1 home key release
	need_distro_tools "$flavor"
	home=$(kernel_home "$flavor")
	key=$(kernel_key "$flavor")
	if kernel_is_current "$flavor"; then
		say "kernel $SERIES $flavor: up to date ($key)"
		return
	fi
	release=$(distro_release "$flavor")
	step "kernel $release: fetch and unpack" "kernel-$SERIES-$flavor" \
		fetch_distro "$home/$key" "$release"
	make_current "$home" "$key"
}
