# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: how far the hooks of a series fit another kernel.
# shellcheck shell=bash

kernel_version() {
	sed -nE 's/^(VERSION|PATCHLEVEL) = ([0-9]+)$/\2/p' "$1/Makefile" | paste -sd.
}

# The series nearest to a version, with the later one of two.
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

# try_patch TREE PATCH: says of each hunk that does not fit where it should be
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

# On a copy of the files that are touched, so that the tree stays as it is.
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
