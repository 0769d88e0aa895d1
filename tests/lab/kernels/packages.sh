# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: builds Debian packages, in the cache.
# shellcheck shell=bash

# Those of debian/control; build-essential, which it need not name, comes first.
need_package_tools() {
	need "building packages" build-essential debhelper dh-dkms dh-python \
		pybuild-plugin-pyproject python3-all python3-click python3-click-man \
		python3-prometheus-client python3-rich python3-setuptools python3-tomli-w
}

# List the files of packages: packaged_files TREE
packaged_files() {
	(cd "$1" && find Kbuild COPYING README.md debian dkms.conf examples module userspace \( -type f -o -type l \) \
		! -path '*/__pycache__/*' ! -path '*/build/*' ! -name '*.o' -print0 | sort -z)
}

# The packages of a tree, in a folder of their own: make_packages TREE DEST
make_packages() {
	local tree=$1 dest=$2 new=${2%/*}/new
	rm -rf "$dest"
	copy_source "$tree" "$new"
	build_packages "$new" --build=binary
	mv "$new" "$dest"
}

copy_source() {
	rm -rf "$2"
	mkdir -p "$2/src"
	packaged_files "$1" | (cd "$1" && xargs -0 cp -a --parents -t "$2/src")
}

# With Debian's own tools alone, whatever Python the user has: build_packages FOLDER ARGUMENT...
build_packages() {
	local folder=$1
	shift
	(cd "$folder/src" && env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
		HOME="$folder" dpkg-buildpackage --unsigned-changes "$@")
	rm -rf "$folder/src"
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

# The line that installs packages, wherever one types it: say_install PACKAGE...
say_install() {
	say "to install them, as root: apt install $*"
}

# ---- The command alone, for Python

# Dependencies of its pure parts: wheels that any Python from 3.9 on takes, at the versions of the
# tests where these have one.
PURE=(click prometheus-client rich tomli tomli-w typing-extensions)
# Dependencies before Python 3.11 alone; pip asks the Python that runs it, not the one given.
BEFORE_3_11=(importlib-resources tomli typing-extensions zipp)
ANY_PYTHON=(--python-version 3.9 --implementation py --abi none --platform any --only-binary :all:)

# Sets DIST to the folder of wheel, sdist and zipapp of this tree.
python_packages() {
	need_venv
	DIST=$CACHE/packages/python-$({ packages_key; cat "$TREE/tests/requirements.txt"; } | hash_of)
	[ -d "$DIST" ] || with_lock packages step "wheel, sdist and zipapp" python-packages \
		make_python_packages "$DIST"
}

# The source is copied without links, because the sdist needs the files shared with the module.
make_python_packages() {
	local new=$CACHE/packages/new-python
	rm -rf "$new" "$1"
	mkdir -p "$new/dist"
	cp -aL "$TREE/userspace" "$new/src"
	rm -rf "$new/src/build"
	cd "$new/src"
	"$VENV/bin/python" -c 'from setuptools import build_meta as it; it.build_sdist("../dist")'
	"$VENV/bin/python" -c 'from setuptools import build_meta as it; it.build_wheel("../dist")'
	make_zipapp "$new"
	mv "$new/dist" "$1"
	rm -rf "$new"
}

# Make one file that Python runs without unpacking: make_zipapp FOLDER
make_zipapp() {
	local pip=("$VENV/bin/pip" install --disable-pip-version-check --no-compile --quiet)
	"${pip[@]}" --target "$1/app" "${ANY_PYTHON[@]}" -c "$TREE/tests/requirements.txt" "${PURE[@]}"
	"${pip[@]}" --target "$1/app" --no-deps "$1"/dist/*.whl
	rm -rf "$1/app/bin" "$1/app/share"
	"$VENV/bin/python" -m zipapp --compress --python '/usr/bin/env python3' \
		--main mmpolicy.__main__:main --output "$1/dist/mmpolicy.pyz" "$1/app"
}

# The command with the oldest Python that it takes, as one installs it there: from the wheel, and as
# one file. Checks of the sources do not find APIs that are too new for that Python.
oldest_python() {
	local root=$CACHE/root/debian-11
	need "a Debian 11" mmdebstrap
	python_packages
	mkdir -p "$CACHE/root"
	[ -d "$root" ] || {
		as_root mmdebstrap --variant=minbase --include=python3,python3-venv \
			--aptopt='APT::Install-Recommends "false"' bullseye "$root.new"
		mv "$root.new" "$root"
	}
	rm -rf "$root/srv/"*
	cp "$DIST"/* "$TREE/tests/lab/oldest.sh" "$root/srv/"
	"$VENV/bin/pip" download --disable-pip-version-check --quiet --dest "$root/srv/wheels" \
		--python-version 3.9 --platform manylinux2014_x86_64 --only-binary :all: \
		"$(echo "$DIST"/*.whl)[ab]" "${BEFORE_3_11[@]}"
	as_root unshare --mount bash -c "mount --rbind /proc '$root/proc' &&
		mount --rbind /sys '$root/sys' && exec chroot '$root' bash -e /srv/oldest.sh"
}

# Sets BPF_PACKAGE to the package with the helper for policies in BPF, which is built before.
bpf_package() {
	local folder
	need_package_tools
	need_bpf
	folder=$CACHE/packages/bpf-$({ packages_key; cat "$BPF/key"; } | hash_of)
	[ -d "$folder" ] || with_lock packages step "package for BPF" packages-bpf \
		make_bpf_package "$folder"
	BPF_PACKAGE=$(echo "$folder"/*.deb)
}

make_bpf_package() {
	local new=$CACHE/packages/new-bpf
	copy_source "$TREE" "$new"
	mkdir -p "$new/src/bpf"
	cp "$BPF/mmpolicy-bpf" "$new/src/bpf/"
	build_packages "$new" --build=any --build-profiles=pkg.mmpolicy.bpf
	rm -rf "$1" "$new"/*-dbgsym_*.deb
	mv "$new" "$1"
}

# Errors and warnings both fail.
lint_packages() {
	packages
	bpf_package
	lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$PACKAGES"/*.changes \
		"$BPF_PACKAGE"
}

# ---- Modules that are built here, for hosts without a compiler

# The series that a release of Debian's belongs to.
series_of() {
	local debian=${1%%-*} version
	version=$(cut -d. -f 1,2 <<<"$1")
	debian=${debian#*+}
	if [ -n "${LATER[$version+$debian]-}" ]; then
		echo "$version+$debian"
	else
		echo "$version"
	fi
}

# Sets SERIES and HEADERS, a folder with "src", to the headers of a kernel: a folder, or a release
# that is installed, or else one of Debian's.
find_headers() {
	SERIES=6.12
	need "building modules" gcc make ccache kmod
	if [ -d "$1" ]; then
		link_headers "$(cd "$1" && pwd -P)"
	elif [ -e "/lib/modules/$1/build/Makefile" ]; then
		link_headers "$(cd "/lib/modules/$1/build" && pwd -P)"
	else
		[[ $1 == *+deb* ]] || die "package: no headers of Linux $1 are installed here:" \
			"give the folder that has them"
		SERIES=$(series_of "$1")
		need_distro_tools cloud
		[ -n "$(series_apt apt-cache pkgnames "linux-headers-$1")" ] ||
			die "package: Debian has no headers of Linux $1 any more: give the folder that has them"
		HEADERS=$CACHE/headers/$1
		[ -e "$HEADERS/ready" ] ||
			with_lock headers step "headers of $1" headers fetch_headers "$1" "$HEADERS"
	fi
}

link_headers() {
	HEADERS=$CACHE/headers/own-$(echo "$1" | hash_of)
	mkdir -p "$HEADERS"
	ln -sfn "$1" "$HEADERS/src"
}

fetch_headers() {
	local base=${1%%-*}
	rm -rf "$2"
	mkdir -p "$2/packages"
	(cd "$2/packages" && series_apt apt-get download "linux-headers-$1" \
		"linux-headers-$base-common" "linux-kbuild-$base")
	unpack_headers "$2/packages" "$1" "$2"
	touch "$2/ready"
}

# Sets MODULE to the module for the headers, without what debuggers want: module_of HEADERS
module_of() {
	local release key
	release=$(cat "$1/src/include/config/kernel.release")
	key=$({ echo "$release"; cat "$1/src/Module.symvers"; sources_of_module; } | hash_of)
	MODULE=$CACHE/modules/$key/$release/updates/mmpolicy.ko
	[ -e "$MODULE" ] || with_lock "modules-$release" step "module for $release" "module-$release" \
		compile_module "$1" "$CACHE/modules/$key" "$release"
}

sources_of_module() { (cd "$TREE" && find Kbuild module -type f ! -path 'module/tests/*' -print0 |
	sort -z | xargs -0 sha256sum); }

# compile_module HEADERS DEST RELEASE
compile_module() {
	local build=$2.build
	rm -rf "$2" "$build"
	mkdir -p "$build"
	cp -a "$TREE/Kbuild" "$TREE/module" "$build/"
	module_make "$1" "$1/src/" M="$build" modules
	! modinfo -F description "$build/module/mmpolicy.ko" | grep -q ^Stub ||
		die "package: on Linux $3 the module is a stub, as it has neither the hooks nor ftrace"
	mkdir -p "$2.new/$3/updates"
	strip --strip-debug -o "$2.new/$3/updates/mmpolicy.ko" "$build/module/mmpolicy.ko"
	rm -rf "$build"
	mv "$2.new" "$2"
}

# Sets MODULES to the package with modules for some kernels: modules_package KERNEL..., signed with
# SIGN, a key and a certificate, if they are given
modules_package() {
	local kernel built new
	need_package_tools
	mkdir -p "$CACHE/packages/modules"
	new=$(mktemp -d "$CACHE/packages/modules/new.XXXXXX")
	copy_source "$TREE" "$new"
	for kernel; do
		find_headers "$kernel"
		module_of "$HEADERS"
		built=${MODULE%/*/*}
		mkdir -p "$new/src/modules"
		cp -r "$built" "$new/src/modules/"
		[ ${#SIGN[@]} = 0 ] || sign_module "$new/src/modules/${built##*/}/updates/mmpolicy.ko"
	done
	# Later builds have higher versions: a package with another kernel in it is an upgrade.
	sed -i "1s/)/+$(date -u +%Y%m%d.%H%M%S))/" "$new/src/debian/changelog"
	step "package of modules" modules-package build_packages "$new" --build=any \
		--build-profiles=pkg.mmpolicy.modules
	MODULES=$CACHE/packages/modules/$(basename "$new"/mmpolicy-modules_*.deb)
	mv "$new/${MODULES##*/}" "$MODULES"
	rm -rf "$new"
}

sign_module() {
	"$HEADERS/src/scripts/sign-file" sha256 "${SIGN[@]}" "$1" ||
		die "package: cannot sign with the key ${SIGN[0]} and the certificate ${SIGN[1]}"
}

# ---- A repository of packages on disk

# Put packages into a folder that apt reads, with those that are there, signed with SIGNED_BY,
# a key of gpg, if that is given: add_to_repository FOLDER PACKAGE...
add_to_repository() {
	local folder=$1 release
	shift
	mkdir -p "$folder"
	cp "$@" "$folder/"
	cd "$folder" || return
	apt-ftparchive packages . >Packages.new
	mv Packages.new Packages
	gzip -9nkf Packages
	rm -f Release InRelease
	release=$(apt-ftparchive -o APT::FTPArchive::Release::Origin=mmpolicy \
		-o APT::FTPArchive::Release::Label=mmpolicy release .)
	echo "$release" >Release
	[ -z "$SIGNED_BY" ] || {
		gpg --batch --yes --local-user "$SIGNED_BY" --clearsign --output InRelease Release
		gpg --batch --yes --export --output mmpolicy.gpg "$SIGNED_BY"
	}
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

# Dependencies of packages beyond essential ones.
ROOT_PACKAGES=systemd-sysv,dkms,kmod,python3-click,python3-prometheus-client,python3-rich
ROOT_PACKAGES+=,python3-tomli-w,libelf1
# The service of the tutorial.
ROOT_PACKAGES+=,redis-server
# Dependencies of Debian's kernels and headers, and of signing modules.
ROOT_PACKAGES+=,linux-base,tiny-initramfs,pahole,openssl
# A host of a fleet: without a compiler, and with what Ansible needs there.
FLEET_PACKAGES=${ROOT_PACKAGES/,dkms/},openssh-server,python3-apt

need_root_tools() {
	need "a Debian of its own for guests" apt mmdebstrap
}

# Where this host has its packages from.
debian_sources() {
	# shellcheck disable=SC2016 # apt replaces these
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
		"Created-By: Packages" "Origin: Debian"
}

# The programs of a guest of another architecture, and those that the command needs. The packages
# are only unpacked, as their scripts would need that architecture.
FOREIGN_PACKAGES=(bash busybox-static coreutils dash diffutils findutils gawk grep kmod libc-bin
	mount procps python3 python3-click python3-prometheus-client python3-rich python3-tomli-w sed
	sysvinit-utils util-linux)

need_foreign_root() {
	local SERIES=6.12	# for Debian 12, whatever the kernel is
	need_foreign_apt
	[ "$(cat "$CACHE/root/$ARCH/packages" 2>/dev/null)" = "${FOREIGN_PACKAGES[*]}" ] ||
		with_lock root step "a Debian of $ARCH for guests" "root-$ARCH" make_foreign_root "$CACHE/root/$ARCH"
}

make_foreign_root() {
	local package folder
	rm -rf "$1.new"
	mkdir -p "$1.new/usr/"{bin,sbin,lib} "$1.new/"{dev,etc,proc,root,run,sys,tmp,var}
	for folder in bin sbin lib; do ln -s "usr/$folder" "$1.new/$folder"; done
	series_apt apt-get install -y -q --no-install-recommends --download-only "${FOREIGN_PACKAGES[@]}"
	for package in "$CACHE/apt/$ARCH"/archives/*_{"$ARCH",all}.deb; do
		dpkg-deb --fsys-tarfile "$package" | tar -x -C "$1.new" --keep-directory-symlink
		rm "$package"
	done
	ln -sf dash "$1.new/bin/sh"
	ln -sf gawk "$1.new/bin/awk"
	echo "root:x:0:0:root:/root:/bin/bash" >"$1.new/etc/passwd"
	echo "root:x:0:" >"$1.new/etc/group"
	echo "${FOREIGN_PACKAGES[*]}" >"$1.new/packages"
	rm -rf "$1"
	mv "$1.new" "$1"
}

# Tests run side by side, so another one may have made it while this one waited for the lock.
make_root() {
	[ ! -d "$1" ] || return 0
	rm -rf "$1.new"
	debian_sources | as_root mmdebstrap --variant=minbase --include="$ROOT_PACKAGES" \
		--aptopt='APT::Install-Recommends "false"' "" "$1.new" -
	mv "$1.new" "$1"
}

# Sets ROOT to the folder of a Debian with systemd and these packages, in which nothing of ours is.
root() {
	local ROOT_PACKAGES=${1-$ROOT_PACKAGES}
	need_root_tools
	ROOT=$CACHE/root/$({ debian_sources; echo "$ROOT_PACKAGES"; } | hash_of)
	mkdir -p "$CACHE/root"
	[ -d "$ROOT" ] || with_lock root step "a Debian for guests" root make_root "$ROOT"
}
