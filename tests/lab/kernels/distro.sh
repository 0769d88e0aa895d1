# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: fetches and unpacks Debian's own kernels from their packages.
# shellcheck shell=bash

# distro_releases NAME: prints the releases that apt offers, such as 6.12.117+deb12-cloud-amd64
distro_releases() {
	series_apt apt-cache pkgnames "linux-headers-$(series_version)" |
		sed -nE "s/^linux-headers-([0-9.]+[+][^-]*-$1)$/\1/p" | sort -V
}

# distro_release FLAVOR: prints the newest release of a flavor
distro_release() {
	case $1 in
	cloud) distro_releases cloud-amd64 ;;
	16k-arm64) distro_releases arm64-16k ;;
	*) distro_releases "$1" ;;
	esac | tail -n 1
}

# release_before RELEASE: prints the release before it
release_before() { distro_releases "${1#*-}" | grep -x -B 1 "$1" | head -n 1; }

# distro_packages RELEASE: prints its packages: image, headers, the part of the headers that all
# flavors share, and the tools to build modules. From 6.19 on, the image needs three more.
distro_packages() {
	local base=${1%%-*}
	echo "linux-image-$1" "linux-headers-$1" "linux-headers-$base-common" \
		"linux-kbuild-$base${ARCH:+:amd64}"	# its programs run here
	[ -z "$(series_apt apt-cache pkgnames "linux-binary-$1")" ] || echo "linux-"{base,binary,modules}"-$1"
}

distro_key() {
	local packages
	read -ra packages <<<"$(distro_packages "$(distro_release "$1")" | xargs)"
	{
		echo "$RECIPE" "${packages[@]}"
		echo "Version: $(distro_version "$(distro_release "$1")")"
	} | hash_of
}

need_distro_tools() {
	need "building modules for Debian's kernels" apt kmod xz-utils dwarves gcc make sparse ccache
	[ -z "$ARCH" ] || need_foreign_apt
	if [ -n "${LATER[$SERIES]-}" ]; then
		need_later_root
	elif [ -n "$ARCH" ]; then
		need "compiling for $ARCH" gcc-aarch64-linux-gnu
	else
		apt_knows "linux-headers-$(series_version)"
	fi
	[ -n "$(distro_release "$1")" ] || die "apt knows no headers of Linux $SERIES for $1"
}

# Sets DISTRO_PACKAGES to the folder with the packages of a release.
distro_debs() {
	DISTRO_PACKAGES=$CACHE/packages/$1
	[ -e "$DISTRO_PACKAGES/linux-image-$1_$(distro_version "$1")_${ARCH:-amd64}.deb" ] ||
		with_lock packages step "packages of $1" "packages-$1" \
			download_distro "$1" "$DISTRO_PACKAGES"
}

distro_version() {
	series_apt apt-cache show --no-all-versions "linux-image-$1" | sed -n 's/^Version: //p'
}

download_distro() {
	local packages
	read -ra packages <<<"$(distro_packages "$1" | xargs)"
	rm -rf "$2" "$2.new"
	mkdir -p "$2.new"
	(cd "$2.new" && series_apt apt-get download "${packages[@]}")
	mv "$2.new" "$2"
}

# both_distro_packages FLAVOR: fetches the packages of its newest kernel and of the one before.
both_distro_packages() {
	local release before
	need_distro_tools "$1"
	release=$(distro_release "$1")
	before=$(release_before "$release")
	distro_debs "$before"
	distro_debs "$release"
	say "packages:" "$CACHE/packages/$before"/*.deb "$DISTRO_PACKAGES"/*.deb
}

# unpack_distro DEST RELEASE: unpacks the packages in the cache, and installs none.
unpack_distro() {
	local dest=$1 release=$2 image
	rm -rf "$dest"
	unpack_headers "$DISTRO_PACKAGES" "$release" "$dest"
	for image in "$dest/root/boot/vmlinuz-$release" "$dest/root/lib/modules/$release/vmlinuz"; do
		[ ! -e "$image" ] || mv "$image" "$dest/bzImage"
	done
	depmod -b "$dest/root" "$release"
}

# unpack_headers FOLDER RELEASE DEST: unpacks all packages of a folder; "src" in DEST is the tree
# to build modules in
unpack_headers() {
	local dest=$3 package
	mkdir -p "$dest/root/usr/lib"
	ln -s usr/lib "$dest/root/lib"
	for package in "$1"/*.deb; do
		dpkg-deb --fsys-tarfile "$package" |
			tar -x -C "$dest/root" --keep-directory-symlink
	done
	ln -s "root/usr/src/linux-headers-$2" "$dest/src"
	sed -i "s|/usr/src|$dest/root/usr/src|" "$dest/src/Makefile"
}

# get_distro FLAVOR: like build_kernel(), but unpacks packages instead of building.
get_distro() {
	local flavor=$1 home key release
	home=$(kernel_home "$flavor")
	key=$(kernel_key "$flavor")
	if kernel_is_current "$flavor"; then
		say "kernel $SERIES $flavor: up to date ($key)"
		return
	fi
	release=$(distro_release "$flavor")
	distro_debs "$release"
	step "kernel $release: unpack" "kernel-$SERIES-$flavor" unpack_distro "$home/$key" "$release"
	make_current "$home" "$key"
}

# ---- Kernels of older Debians, for which no module is built

# Unpacks the cloud kernel of the Debian release of SERIES, without headers.
get_old() {
	local home package
	home=$(kernel_home cloud)
	need "kernels of older Debians" kmod
	need_series
	package=$(series_apt apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p')
	[ "$(readlink "$home/current")" != "$package" ] || return 0
	with_lock "$SERIES" step "kernel $package: unpack" "kernel-$SERIES" unpack_old "$home/$package"
	make_current "$home" "$package"
}

unpack_old() {
	rm -rf "$1"
	mkdir -p "$1"
	cd "$1"
	series_apt apt-get download "${1##*/}"
	dpkg-deb -x ./*.deb root
	rm ./*.deb
	mv root/boot/vmlinuz-* bzImage
	depmod -b root "${1##*/linux-image-}"
}
