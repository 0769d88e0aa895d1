# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: policies in BPF, the helper that loads them, and their dependencies.
# shellcheck shell=bash

# The kernel's source has a libbpf that knows struct_ops of modules; Debian 12's does not.
need_bpf() {
	local SERIES=6.12 key
	need "policies in BPF" clang make gcc libc6-dev libelf-dev zlib1g-dev xz-utils
	need_series
	key=$({ source_version; cat "$TREE/userspace/bpf/"* "${BASH_SOURCE[0]}"; } | hash_of)
	BPF=$CACHE/bpf
	[ "$(cat "$BPF/key" 2>/dev/null)" = "$key" ] ||
		with_lock bpf step "libbpf and mmpolicy-bpf" bpf build_bpf "$key" "$BPF"
}

# build_bpf KEY DEST: libbpf with its headers, and the helper, with libbpf linked in
build_bpf() {
	local key=$1 dest=$2 top
	rm -rf "$dest" "$dest.new"
	mkdir -p "$dest.new/lib"
	top=linux-source-6.12
	tar -C "$dest.new" -xJf "/usr/src/$top.tar.xz" "$top/tools/lib" "$top/tools/include" \
		"$top/tools/build" "$top/tools/scripts" "$top/tools/arch/x86/include" \
		"$top/scripts/bpf_doc.py" "$top/include/uapi/linux/bpf.h"
	make -C "$dest.new/$top/tools/lib/bpf" -j"$(nproc)" OUTPUT="$dest.new/lib/" \
		DESTDIR="$dest.new" prefix= install_headers "$dest.new/lib/libbpf.a"
	gcc -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -I"$dest.new/include" \
		-o "$dest.new/mmpolicy-bpf" "$TREE/userspace/bpf/load.c" "$dest.new/lib/libbpf.a" -lelf -lz
	rm -rf "${dest:?}.new/$top"
	echo "$key" >"$dest.new/key"
	mv "$dest.new" "$dest"
}

# compile_bpf SOURCE OBJECT
compile_bpf() {
	clang @"$TREE/userspace/bpf/flags" -Werror -I"$TREE/userspace/bpf" -I"$BPF/include" -c "$1" -o "$2"
}

# Compiles policies, the examples if none is given.
cmd_bpf() {
	local source
	take_options "$@"
	need_bpf
	mkdir -p "$CACHE/bpf-objects"
	[ ${#REST[@]} -gt 0 ] || REST=("$TREE"/examples/bpf/*.bpf.c)
	for source in "${REST[@]}"; do
		[[ $source == *.bpf.c ]] || die "bpf: $source is no FILE.bpf.c"
		compile_bpf "$source" "$CACHE/bpf-objects/$(basename "$source" .c).o"
		say "policy: $CACHE/bpf-objects/$(basename "$source" .c).o"
	done
	say "helper: $BPF/mmpolicy-bpf"
}

# Replays recorded first touches of programs under a policy, without a kernel.
cmd_replay() {
	local recorded=("$TREE"/tests/unit/recorded/*.xz)
	take_options "$@"
	[[ ${REST[0]-} == *.bpf.c && -r ${REST[0]} ]] ||
		die "replay: give the source of a policy, FILE.bpf.c"
	need "replaying programs" gcc libc6-dev patch xz-utils
	recorded=("${recorded[@]##*/}")
	[ ${#REST[@]} -gt 1 ] || REST+=("${recorded[@]%.xz}")
	"$TREE/tests/unit/run" --replay "${REST[@]}"
}
