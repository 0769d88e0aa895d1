# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: checks that the hooks compile wherever the kernel does. It compiles
# the files that the patches touch, in one tree, with one configuration after the
# other.
# shellcheck shell=bash

# Prints configurations: a name, and the options of scripts/config that make it differ from the
# configuration of the patched test kernel.
hook_configs() {
	cat <<-'END'
		MM_POLICY=y		-e MM_POLICY
		MM_POLICY=n		-d MM_POLICY
		THP=n			-d TRANSPARENT_HUGEPAGE
		THP=n,COMPACTION=n	-d TRANSPARENT_HUGEPAGE -d COMPACTION
		NUMA=n			-d NUMA
		MEMCG=n			-d MEMCG
		SWAP=n			-d SWAP
		ADVISE_SYSCALLS=n	-e EXPERT -d ADVISE_SYSCALLS
		PAGE_POOL=n		-d NET
		PREEMPT=y		-d PREEMPT_VOLUNTARY -e PREEMPT
		PREEMPT_RT=y		-e EXPERT -d PREEMPT_VOLUNTARY -e PREEMPT_RT
		DEBUG_VM=y		-e DEBUG_KERNEL -e DEBUG_VM -e PAGE_TABLE_CHECK
		allmodconfig
	END
}

lint_hook_configs() {
	local home=$CACHE/configs key name options flavor=patched
	[ ! -d "$TREE/kernel-hooks/$SERIES/large-folio-faults" ] || flavor=large
	key=$(kernel_key "$flavor")
	if [ "$(cat "$home/key" 2>/dev/null)" != "$key" ]; then
		rm -rf "$home"
		patched_tree "$flavor" "$home/src" >/dev/null
		echo "$key" >"$home/key"
	fi
	while read -r name options; do
		check "lint: hooks with $name" compile_hooks "$home" "$name" "$options"
	done < <(hook_configs)
}

# compile_hooks HOME NAME OPTIONS: a warning fails
compile_hooks() {
	local out=$1/small make=(kmake "$1/src") objects
	[ "$2" != allmodconfig ] || out=$1/$2
	mkdir -p "$out"
	make+=(O="$out")
	if [ "$2" = allmodconfig ]; then
		"${make[@]}" allmodconfig
	else
		"${make[@]}" tinyconfig
		mapfile -t objects < <(fragments patched)
		(cd "$out" && "$1/src/scripts/kconfig/merge_config.sh" -m .config "${objects[@]}")
		# shellcheck disable=SC2086 # the options are words
		"$1/src/scripts/config" --file "$out/.config" $3
	fi
	"${make[@]}" olddefconfig
	is_taken "$out/.config" "$2"
	mapfile -t objects < <(touched_objects "$1/src" "$out/.config")
	"${make[@]}" KCFLAGS=-Werror "${objects[@]}"
}

# is_taken CONFIG LIST: fails unless each NAME=y or NAME=n of the list is in the final .config.
# Does not check a name without a value, such as allmodconfig.
is_taken() {
	local pair
	for pair in ${2//,/ }; do
		case $pair in
		THP=n) ! grep -q '^CONFIG_TRANSPARENT_HUGEPAGE=' "$1" ;;
		*=n) ! grep -q "^CONFIG_${pair%=n}=" "$1" ;;
		*=y) grep -q "^CONFIG_$pair" "$1" ;;
		esac || die "the final .config of the kernel has no $pair"
	done
}

# The objects of the C files that the patches touch, as far as this kernel has them.
touched_objects() {
	local file object option
	while read -r file; do
		object=${file%.c}.o
		option=$(sed -nE "s/^obj-\\\$\((CONFIG_\w+)\).*[[:space:]]${object##*/}([[:space:]].*|$)/\1/p" \
			"$1/${file%/*}/Makefile")
		if [ -z "$option" ] || grep -q "^$option=[ym]" "$2"; then
			echo "$object"
		fi
	done < <(touched_files "$TREE/kernel-hooks/$SERIES"/*.patch | grep '\.c$')
}
