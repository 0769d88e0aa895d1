# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: builds the guests' kernels and the module, in the cache.
# shellcheck shell=bash

EXPECTED_OBJECTS=1530	# objects assumed for the progress of a first build
RECIPE=1		# part of every kernel's key; raise it when the way of building changes

# Prints the folder of a flavor's kernels; its link "current" leads to the kernel built last.
kernel_home() { echo "$CACHE/kernel/$SERIES-$1"; }

# The rows of tests/lab/kernels/flavors.
flavor_rows() { sed -e '/^#/d' -e 's/ *| */|/g' "${TREE:?}/tests/lab/kernels/flavors"; }

# One field of a flavor: flavor_field NAME COLUMN, where 1 is the name
flavor_field() { flavor_rows | awk -F '|' -v name="$1" -v column="$2" '$1 == name { print $column }'; }

is_built() { built | grep -qxF -e "$1"; }

is_distro() { [[ $(flavor_field "$1" 4) == debian* ]]; }

# Print the flavors that are built here, and those that are fetched as packages of amd64.
built() { flavor_rows | awk -F '|' '$4 !~ /^debian/ { print $1 }'; }
distros() { flavor_rows | awk -F '|' '$4 == "debian" { print $1 }'; }

# tested_by default|hooks|full: prints the flavors of this series that a kind of test runs on. If
# there are no hooks for the series, these are only Debian's own.
tested_by() {
	local hooks=$TREE/kernel-hooks/$SERIES
	flavor_rows | awk -F '|' -v kind="$1" -v series="$SERIES" -v all="$([ ! -d "$hooks" ] || echo 1)" '
		(all || $4 ~ /^debian/) && (" " $5 " ") ~ " " kind "(:" series ")? " { print $1 }'
}

# Prints the *.config files of a flavor, the most general one first.
fragments() {
	local on name names
	on=$(flavor_field "$1" 2)
	names=$(flavor_field "$1" 3)
	[ -n "$on" ] || die "no kernel is called '$1'; tests/lab/kernels/flavors lists all"
	[ "$on" = - ] || fragments "$on"
	for name in ${names#-}; do
		echo "$TREE/tests/lab/kernels/${name/SERIES/$SERIES}.config"
	done
}

patches() {
	local hooks=$TREE/kernel-hooks/$SERIES kind
	kind=$(flavor_field "$1" 4)
	[ "$kind" = none ] || printf '%s\n' "$hooks"/*.patch
	[ "$kind" != large ] || printf '%s\n' "$hooks"/large-folio-faults/*.patch
}

kernel_key() {
	local inputs
	! is_distro "$1" || { distro_key "$1" && return; }
	mapfile -t inputs < <(fragments "$1" && patches "$1")
	{
		echo "$RECIPE"
		source_version
		gcc --version | head -n 1
		cat "${inputs[@]}"
	} | hash_of
}

# the headers that ccache does not look at; gcc writes their paths without "./"
SAME_VALUES=include/generated/autoconf.h:include/linux/gfp_types.h

# make in a kernel tree: kmake TREE ARGUMENT...
# The compiler lists the includes of a file, so ccache need not preprocess each file first. Kernels
# with and without the hooks share objects in ccache. They differ in autoconf.h and gfp_types.h,
# which nearly all files include, but what most files read there is equal. So ccache does not look
# at these two headers, but at the list of their values (list_values).
#
# Two objects contain a file that the compiler does not list: the configuration, and the compressed
# kernel. An option that names the tree keeps ccache from taking those of another tree.
kmake() {
	local tree=$1 values=$1/.values of_tree
	of_tree=-DTREE_$(hash_of <<<"$1")
	shift
	set -- CFLAGS_configs.o="$of_tree" AFLAGS_piggy.o="$of_tree" "$@"
	[ -z "$ARCH" ] || set -- ARCH="$ARCH" CROSS_COMPILE=aarch64-linux-gnu- "$@"
	[ -e "$values" ] || values=
	CCACHE_EXTRAFILES=$values CCACHE_IGNOREHEADERS=${values:+$SAME_VALUES} \
		CCACHE_DIR=$CACHE/ccache CCACHE_MAXSIZE=5G CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1 \
		CCACHE_DEPEND=1 KBUILD_BUILD_TIMESTAMP='1970-01-01 00:00:00 UTC' KBUILD_BUILD_VERSION=1 \
		KBUILD_BUILD_USER=mmpolicy KBUILD_BUILD_HOST=mmpolicy \
		nice make -C "$tree" -j"$(nproc)" CC="ccache ${ARCH:+aarch64-linux-gnu-}gcc" \
		HOSTCC="ccache gcc" "$@"
}

# list_values TREE: prints the values in these headers of a configured tree, but for
# CONFIG_MM_POLICY and __GFP_ONLY_COMPACT: only files that the hooks change or add read these two.
# The bit of __GFP_ONLY_COMPACT is called unused in Debian's source.
list_values() {
	local bit=___GFP_ONLY_COMPACT_BIT
	grep -v CONFIG_MM_POLICY "$1/.config"
	sed "s/___GFP_UNUSED_BIT,.*/$bit,/; /^\(\/\*\| \*\)/d; /^#define _*GFP_ONLY_COMPACT/d" \
		"$1/include/linux/gfp_types.h"
}

# patched_tree FLAVOR TREE: makes a tree of hard links to the source and patches it. The source
# stays as it is, as patch replaces files and does not write into them.
patched_tree() {
	local flavor=$1 tree=$2 patch
	rm -rf "$tree"
	mkdir -p "${tree%/*}"
	cp -al "$(source_tree)" "$tree"
	for patch in $(patches "$flavor"); do
		echo "applying $patch"
		patch -d "$tree" -p1 --fuzz=0 --no-backup-if-mismatch <"$patch"
	done
}

# prepare_tree FLAVOR TREE: makes a patched and configured tree.
prepare_tree() {
	local flavor=$1 tree=$2 suffix=-mmpolicy
	patched_tree "$flavor" "$tree"
	[ "$flavor" = patched ] || suffix+=-$flavor
	echo "$suffix" >"$tree/localversion"
	configure "$flavor" "$tree"
	# Debug information has the names of bits, and line numbers, which differ.
	grep -q '^CONFIG_DEBUG_INFO=y' "$tree/.config" || list_values "$tree" >"$tree/.values"
	touch "$tree/.prepared"
}

configure() {
	local inputs
	mapfile -t inputs < <(fragments "$1")
	kmake "$2" tinyconfig
	(cd "$2" && scripts/kconfig/merge_config.sh -m .config "${inputs[@]}")
	kmake "$2" olddefconfig
	check_config "$2/.config" "${inputs[@]}"
}

# check_config CONFIG FRAGMENT...: fails unless the final .config has every option of the
# fragments.
check_config() {
	local config=$1
	shift
	awk '
		{ name = ""; value = "n" }
		/^CONFIG_/ { name = $0; sub(/=.*/, "", name); value = $0; sub(/^[^=]*=/, "", value) }
		/^# CONFIG_.* is not set/ { name = $2 }
		name == "" { next }
		FILENAME == ARGV[ARGC - 1] { have[name] = value; next }
		{ want[name] = value }
		END {
			for (name in want) {
				got = name in have ? have[name] : "n"
				if (got == want[name])
					continue
				print "an option of the fragments is not in the final .config: " name "=" want[name] " (is " got ")"
				bad = 1
			}
			exit bad
		}' "$@" "$config"
}

# build_tree TREE DEST: image and modules of a configured tree
build_tree() {
	kmake "$1" "$(image_name)" modules
	install_kernel "$1" "$2"
}

image_name() { [ -z "$ARCH" ] && echo bzImage || echo Image; }

install_kernel() {
	rm -rf "$2/root" "$2/module.key"
	kmake "$1" INSTALL_MOD_PATH="$2/root" modules_install
	cp "$1/arch/${ARCH:-x86}/boot/$(image_name)" "$2/bzImage"
}

build_kernel() {
	local flavor=$1 home key dest tree
	[ "$(flavor_field "$flavor" 4)" = none ] || [ -n "$(patches "$flavor")" ] ||
		die "no patches in kernel-hooks/$SERIES"
	[ "$(flavor_field "$flavor" 4)" != large ] || [ -d "$TREE/kernel-hooks/$SERIES/large-folio-faults" ] ||
		die "kernel-hooks/$SERIES has no large-folio-faults"
	home=$(kernel_home "$flavor")
	key=$(kernel_key "$flavor")
	dest=$home/$key tree=$home/$key/src
	if kernel_is_current "$flavor"; then
		say "kernel $SERIES $flavor: up to date ($key)"
		return
	fi
	need_source
	[ -e "$tree/.prepared" ] ||
		step "kernel $SERIES $flavor: patch and configure" "prepare-$SERIES-$flavor" \
			prepare_tree "$flavor" "$tree"
	OBJECTS=$(cat "$home/objects" 2>/dev/null || echo "$EXPECTED_OBJECTS") \
		step "kernel $SERIES $flavor: build" "kernel-$SERIES-$flavor" build_tree "$tree" "$dest"
	grep -cE '^ +(CC|AS) ' "$LOG/kernel-$SERIES-$flavor.log" >"$home/objects" || true
	make_current "$home" "$key"
}

kernel_is_current() {
	[ "$(readlink "$(kernel_home "$1")/current")" = "$(kernel_key "$1")" ]
}

# make_current FOLDER KEY: points "current" to the new kernel, then removes the older ones.
make_current() {
	local old
	ln -sfn "$2" "$1/current.new"
	mv -T "$1/current.new" "$1/current"
	for old in "$1"/*/; do
		case ${old%/} in
		*/current | */"$2") ;;
		*) rm -rf "${old%/}" ;;
		esac
	done
}

# Builds the user's own kernel tree, KSRC, as it is configured. It is never patched.
use_own_kernel() {
	local dest
	[ -f "$KSRC/.config" ] || die "KSRC=$KSRC has no .config: configure it first"
	dest=$(kernel_home ksrc)/own
	mkdir -p "$dest"
	ln -sfn "$(cd "$KSRC" && pwd -P)" "$dest/src"
	if [ -f "$KSRC/arch/x86/boot/bzImage" ]; then
		say "kernel: $KSRC is built already; it is used as it is"
		step "kernel: install its modules" kernel-ksrc install_kernel "$dest/src/" "$dest"
	else
		say "kernel: building $KSRC with its own configuration"
		step "kernel: build $KSRC" kernel-ksrc build_tree "$dest/src/" "$dest"
	fi
	grep -q '^CONFIG_MM_POLICY=y' "$KSRC/.config" ||
		say "note: that kernel lacks the hooks (CONFIG_MM_POLICY); the module is a stub there"
	make_current "$(kernel_home ksrc)" own
}

# Installs the tools for FLAVORS. Debian's own kernels need fewer, as they are not built.
need_tools() {
	local flavor
	for flavor in "${FLAVORS[@]}"; do
		if is_distro "$flavor"; then
			need_distro_tools "$flavor"
		else
			need_kernel_tools
			[[ $(fragments "$flavor") != */traced.config* ]] || need "BTF in kernels" dwarves
		fi
	done
}

# Builds each kernel of FLAVORS that is not built yet.
kernels() {
	local flavor
	need_tools
	for flavor in "${FLAVORS[@]}"; do
		if [ "$flavor" = ksrc ]; then
			with_lock kernel-ksrc use_own_kernel
		elif is_distro "$flavor"; then
			with_lock "kernel-$SERIES-$flavor" get_distro "$flavor"
		else
			with_lock "kernel-$SERIES-$flavor" build_kernel "$flavor"
		fi
	done
}

# ---- Module

module_key() {
	{
		readlink "$(kernel_home "$1")/current"
		stat -c %Y "$(kernel_home "$1")/current/bzImage"
		cd "$TREE" && find Kbuild module -type f -print0 | sort -z | xargs -0 sha256sum
	} | hash_of
}

# module_make KERNEL TREE ARGUMENT...: runs make. For a later Debian's kernel, it uses that
# Debian's compiler.
module_make() {
	local kernel=$1 tree=$2
	shift 2
	if [ -n "${LATER[$SERIES]-}" ] && [ -L "$kernel/src" ]; then
		in_later_root make -C "$tree" -j"$(nproc)" "$@"
	else
		kmake "$tree" "$@"
	fi
}

# add_checker TREE: adds the script that make runs from 7.2 on to test sparse, as Debian's headers
# lack it. If the script fails or is missing, make goes on without sparse. This one accepts
# Debian's sparse, although that lacks __typeof_unqual__ and does not know, as gcc does, that
# strlen() of a text is constant.
add_checker() {
	local script=$1/scripts/checker-valid.sh
	if [ ! -e "$script" ] && grep -qs checker-valid.sh "$1"/Makefile "$1"/../*-common/Makefile; then
		printf '#!/bin/sh\necho 1\n' >"$script"
		chmod +x "$script"
	fi
}

# make_module KERNEL: builds and installs the module from a copy of its source, because builds
# outside the kernel tree write next to the source.
make_module() {
	local kernel=$1 copy=$1/module tree=$1/src/ variables=(MMPOLICY_BENCH=m)
	rm -rf "$copy"
	mkdir -p "$copy"
	cp -a "$TREE/Kbuild" "$TREE/module" "$copy/"
	if grep -q '^CONFIG_KUNIT=' "$tree/.config" && compgen -G "$copy/module/tests/*_kunit.c"; then
		variables+=(MMPOLICY_KUNIT=m)
	fi
	add_checker "$(readlink -f "$tree")"
	module_make "$kernel" "$tree" M="$copy" W=1 C=1 CHECK="sparse -D__typeof_unqual__=__typeof__" "${variables[@]}" modules
	install_module "$copy" "$kernel/root" "$(cat "$tree/include/config/kernel.release")"
}

# install_module BUILD ROOT RELEASE: copies the modules without "make modules_install", because not
# every kernel has the key and the symbols that this needs.
install_module() {
	local updates=$2/lib/modules/$3/updates
	rm -rf "$updates"
	mkdir -p "$updates"
	find "$1" -name '*.ko' -exec cp -t "$updates" {} +
	depmod -b "$2" "$3"
}

build_module() {
	local flavor=$1 kernel key log=$LOG/module-$SERIES-$1.log
	kernel=$(cd "$(kernel_home "$flavor")/current" 2>/dev/null && pwd -P) ||
		die "no $flavor kernel yet: ./dev kernel --$flavor"
	key=$(module_key "$flavor")
	if [ "$(cat "$kernel/module.key" 2>/dev/null)" = "$key" ]; then
		say "module $SERIES $flavor: up to date ($key)"
		return
	fi
	rm -f "$kernel/module.key"
	step "module $SERIES $flavor" "module-$SERIES-$flavor" make_module "$kernel"
	# this_cpu_write() of arm64 has a cast to each size, and sparse looks at all of them.
	if grep -iE 'warning|error:|C=1 specified, but' "$log" |
		grep -vE 'error: bad constant expression$|/asm/percpu.h:.*: cast truncates bits'; then
		die "module $SERIES $flavor: the build printed the warnings above (log: $log)"
	fi
	echo "$key" >"$kernel/module.key"
}

modules() {
	local flavor
	need_tools
	for flavor in "${FLAVORS[@]}"; do
		with_lock "kernel-$SERIES-$flavor" build_module "$flavor"
	done
}
