# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: tests which patches of the hooks apply to another kernel tree.
# shellcheck shell=bash

kernel_version() {
	sed -nE 's/^(VERSION|PATCHLEVEL) = ([0-9]+)$/\2/p' "$1/Makefile" | paste -sd.
}

# nearest_series VERSION: prints the series of kernel-hooks/ that is nearest to a version.
nearest_series() {
	local folder
	for folder in "$TREE"/kernel-hooks/*/; do
		basename "$folder"
	done | awk -F. -v version="$1" '
		BEGIN { split(version, v, ".") }
		{ d = ($1 - v[1]) * 1000 + $2 - v[2]; d = d < 0 ? -d : d }
		NR == 1 || d <= least { least = d; best = $0 }
		END { print best }'
}

touched_files() { sed -n 's,^+++ b/,,p' "$@" | sort -u; }

# try_patch TREE PATCH: applies a patch; prints the file and line of each hunk that does not apply
try_patch() {
	local said
	if said=$(patch -d "$1" -p1 --fuzz=0 --no-backup-if-mismatch --reject-file=- <"$2"); then
		say "ok    ${2##*/}"
		return
	fi
	say "FAIL  ${2##*/}"
	awk '/^(checking|patching) file/ { file = $3 }
		/^Hunk #[0-9]+ FAILED/ { sub(/\.$/, "", $5); print "      " file ": hunk " $2 ", line " $5 }
		/^No file to patch/ || /^can.t find file/ { print "      a file is not there" }' \
		<<<"$said"
	return 1
}

# port TREE: tries the patches on a copy of the files that they touch, so the tree does not change.
port() {
	local tree=$1 version series copy file patch failed=0
	[ -f "$tree/Makefile" ] || die "port: $tree is no kernel tree"
	version=$(kernel_version "$tree")
	series=$(nearest_series "$version")
	say "Linux $version, hooks for $series:"
	copy=$(mktemp -d)
	for file in $(touched_files "$TREE/kernel-hooks/$series"/*.patch); do
		mkdir -p "$copy/${file%/*}"
		[ ! -f "$tree/$file" ] || cp "$tree/$file" "$copy/$file"
	done
	for patch in "$TREE/kernel-hooks/$series"/*.patch; do
		try_patch "$copy" "$patch" || failed=$((failed + 1))
	done
	rm -r "$copy"
	[ $failed = 0 ] || die "port: $failed patches do not fit; see kernel-hooks/README.md, \"To another kernel\""
}
