#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Compiles features.c with a kernel's flags, and writes MMP_HAVE_<name> for each TRY() line to OUT:
# 0 if the compiler reports an error in the line, else 1.
# Usage: features.sh FEATURES.C OUT COMPILER...
set -eu
tries=$1 out=$2
shift 2
log=$(LC_ALL=C "$@" -fsyntax-only -ferror-limit=0 "$tries" 2>&1) || true
case $log in
*ferror-limit*) log=$(LC_ALL=C "$@" -fsyntax-only -fmax-errors=0 "$tries" 2>&1) || true ;;
esac

{
	echo "/* Made by features.sh */"
	grep -n '^TRY(' "$tries" | sed -E 's/^([0-9]+):TRY\(([A-Z_]+),.*/\1 \2/' |
		while read -r line name; do
			have=1
			! echo "$log" | grep -q "features\.c:$line:[0-9]*: error" || have=0
			echo "#define MMP_HAVE_$name $have"
		done
} >"$out.new"
if ! grep -q 'HAVE_ANYTHING 1' "$out.new" || ! grep -q 'HAVE_NOTHING 0' "$out.new"; then
	echo "$log" >&2
	echo "features.sh: cannot probe this kernel's headers; see the compiler's output above" >&2
	exit 1
fi
mv "$out.new" "$out"
