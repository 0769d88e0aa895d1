# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: gets the kernel's source, from this machine's Debian or a later one.
# shellcheck shell=bash

# Series that this machine's Debian does not have, and the Debian release that has them; likewise a
# later DKMS, Go and containerd, and older kernels for which no module is built. A name with
# "+deb13" is Debian 13's build of a series that this Debian has, too.
declare -A LATER=([6.12+deb13]=trixie [7.2]=trixie-backports [7.3]=trixie-backports [dkms]=trixie [go]=trixie [containerd-1]=trixie [containerd-2]=sid [linux-5.10]=bullseye [linux-6.1]=bookworm)

# Prints the series that have hooks, the oldest first.
all_series() { printf '%s\n' "$TREE"/kernel-hooks/*/ | xargs -n 1 basename | sort -V; }

# Prints the series whose kernels can be built here or fetched as Debian's packages.
kernel_series() {
	{
		all_series
		printf '%s\n' "${!LATER[@]}" | grep '^[0-9]'
	} | sort -Vu
}

# The version of a series, without the Debian that built it.
series_version() { echo "${SERIES%+*}"; }

later_home() { echo "$CACHE/apt/${LATER[$SERIES]}"; }

# Like later_home(), for packages of ARCH.
foreign_home() { echo "$CACHE/apt/$ARCH${LATER[$SERIES]:+-${LATER[$SERIES]}}"; }

# Prints the lines of sources.list for SERIES.
series_sources() {
	if [ -n "${LATER[$SERIES]-}" ]; then
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
			"$(mirror) ${LATER[$SERIES]} main"
	else
		debian_sources
	fi
}

# series_apt COMMAND...: runs apt with the sources for SERIES, and for ARCH if it is set
series_apt() {
	if [ -n "$ARCH" ]; then
		APT_CONFIG=$(foreign_home)/apt.conf "$@"
	elif [ -n "${LATER[$SERIES]-}" ]; then
		APT_CONFIG=$(later_home)/apt.conf "$@"
	else
		"$@"
	fi
}

# Sets up an apt for packages of ARCH in the cache. It installs nothing, and this machine's own apt
# keeps its single architecture.
need_foreign_apt() {
	[ -e "$(foreign_home)/ready" ] ||
		with_lock apt step "the index of ${LATER[$SERIES]:-Debian} for $ARCH" "apt-$ARCH" \
			get_foreign_apt
}

get_foreign_apt() {
	local home
	home=$(foreign_home)
	rm -rf "$home"
	mkdir -p "$home/lists/partial" "$home/archives/partial"
	series_sources >"$home/sources.list"
	: >"$home/status"
	cat >"$home/apt.conf" <<-END
		Dir::Etc::sourcelist "$home/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::State::lists "$home/lists";
		Dir::State::status "$home/status";
		Dir::Cache "$home";
		APT::Architecture "$ARCH";
		APT::Architectures { "$ARCH"; "amd64"; };
		APT::Sandbox::User "root";
	END
	series_apt apt-get update
	touch "$home/ready"
}

# The mirror that this machine has Debian from.
mirror() {
	# shellcheck disable=SC2016 # for apt to expand
	apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' |
		grep -v security | head -n 1
}

# apt_knows PACKAGE: fail if no package has that prefix, even after an update
apt_knows() {
	[ -z "$(apt-cache pkgnames "$1")" ] || return 0
	apt_update
	[ -n "$(apt-cache pkgnames "$1")" ] || die "apt knows no $1: Debian 12 has Linux 6.12 among" \
		"its security updates, so its sources have to have bookworm-security"
}

# Makes the source of SERIES available to apt. A later Debian has an index of its own in the cache,
# so this machine's apt does not mix releases.
need_series() {
	if [ -z "${LATER[$SERIES]-}" ]; then
		apt_knows "linux-source-$(series_version)"
		need "the kernel source" "linux-source-$(series_version)"
		return
	fi
	need "the kernel source" apt debian-archive-keyring
	[ -e "$(later_home)/ready" ] ||
		with_lock apt step "the index of ${LATER[$SERIES]}" "apt-${LATER[$SERIES]}" get_later
}

get_later() {
	local home
	home=$(later_home)
	rm -rf "$home"
	mkdir -p "$home/lists/partial" "$home/archives/partial"
	series_sources >"$home/sources.list"
	cat >"$home/apt.conf" <<-END
		Dir::Etc::sourcelist "$home/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::State::lists "$home/lists";
		Dir::Cache "$home";
		APT::Sandbox::User "root";
	END
	series_apt apt-get update
	touch "$home/ready"
}

source_version() {
	if [ -n "${LATER[$SERIES]-}" ]; then
		series_apt apt-cache show --no-all-versions "linux-source-$(series_version)" |
			sed -n 's/^Version: //p'
	else
		dpkg-query -W -f '${Version}' "linux-source-$(series_version)"
	fi
}

# The unpacked kernel source, never built in.
source_tree() { echo "$CACHE/src/$SERIES-$(source_version)"; }

need_source() {
	local dest
	need_series
	dest=$(source_tree)
	[ -d "$dest" ] || with_lock src step "unpacking linux-source-$(series_version)" "unpack-$SERIES" \
		unpack_source "$dest"
}

unpack_source() {
	[ ! -d "$1" ] || return 0
	rm -rf "$CACHE/src/$SERIES"-* "$1.new"
	mkdir -p "$1.new"
	source_archive "$1.new" | tar -C "$1.new" --strip-components=1 -xJ
	mv "$1.new" "$1"
}

# source_archive FOLDER: prints the source archive; downloads go to FOLDER
source_archive() {
	if [ -n "${LATER[$SERIES]-}" ]; then
		(cd "$1" && series_apt apt-get download "linux-source-$(series_version)") >&2
		dpkg-deb --fsys-tarfile "$1"/linux-source-*.deb |
			tar -xO "./usr/src/linux-source-$(series_version).tar.xz"
		rm "$1"/linux-source-*.deb
	else
		cat "/usr/src/linux-source-$(series_version).tar.xz"
	fi
}

# ---- A root of the later Debian, to build with its compiler

# Backports have no compiler of their own, so the root is of the release itself.
later_root() { echo "$CACHE/root/${LATER[$SERIES]%-backports}${ARCH:+-to-$ARCH}"; }

need_later_root() {
	need_root_tools
	ARCH='' need_series
	[ -e "$(later_root)" ] ||
		with_lock apt step "a Debian of its own to build in" "root-${LATER[$SERIES]%-backports}" \
			make_later_root "$(later_root)"
}

make_later_root() {
	local packages=gcc,make,sparse,kmod,pahole,libelf1t64,libssl3t64,zlib1g
	packages+=${ARCH:+,gcc-aarch64-linux-gnu}
	mkdir -p "${1%/*}"
	as_root rm -rf "$1.new"
	sed 's/-backports//' "$(later_home)/sources.list" |
		as_root mmdebstrap --variant=minbase --include="$packages" \
			--aptopt='APT::Install-Recommends "false"' "" "$1.new" -
	as_root mkdir -p "$1.new$CACHE"
	as_root mv "$1.new" "$1"
}

# in_later_root COMMAND...: runs a command in that root, with the cache mounted at its usual path
in_later_root() {
	# shellcheck disable=SC2016 # for the other shell
	unshare --map-root-user --mount sh -ec '
		root=$1 cache=$2
		shift 2
		mount --rbind "$cache" "$root$cache"
		mount --rbind /proc "$root/proc"
		exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' \
		sh "$(later_root)" "$CACHE" "$@"
}

# Builds the kernel's selftests of mm and cgroups from its source. Some of them do not compile with
# this machine's headers; our test fails if one is missing that it runs.
need_selftests() {
	local dest
	dest=$CACHE/selftests/$SERIES
	need "the kernel's own tests" libcap-dev libnuma-dev pkg-config
	need_source
	[ "$(cat "$dest/version" 2>/dev/null)" = "$(source_version)" ] ||
		with_lock selftests step "the kernel's own tests" "selftests-$SERIES" \
			build_selftests "$dest"
}

build_selftests() {
	local dest=$1 tree=$1.tree folder
	rm -rf "$dest" "$tree"
	mkdir -p "$dest"
	cp -al "$(source_tree)" "$tree"
	kmake "$tree" defconfig headers
	for folder in mm cgroup; do
		# khugepaged.c of 6.12.117 lacks the include.
		kmake "$tree/tools/testing/selftests/$folder" -k \
			EXTRA_CFLAGS="-include ../kselftest.h" || true
		cp -a "$tree/tools/testing/selftests/$folder" "$dest/"
	done
	rm -rf "$tree"
	source_version >"$dest/version"
}
