#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# pyarrow has mimalloc inside, and asks by MADV_HUGEPAGE for an arena of 1 GiB at the first buffer,
# however small, so that a host with enabled=madvise gives it 2 MB for 100 bytes. A good guess is
# that it has done so since some version, and that MIMALLOC_ALLOW_THP=0 ends it. Version 21 asks and
# ignores the variable, 22 and 23 do not ask, 24 does not ask and forbids huge pages for the whole
# process if the variable is 0, 25 and 26 ask unless it is. So an upgrade turns huge pages off and
# on again, and the variable has to be tried with the version at hand.
# Seen on Linux 6.18.44, x86-64, Python 3.11 (asked, forbidden by prctl; without and with =0):
#   21.0.0: asked, asked    22.0.0: -, -          23.0.0: -, -
#   24.0.0: -, forbidden    25.0.1: asked, forbidden    26.0.1: asked, forbidden
# Needs python3 with venv, strace and a network for wheels of pyarrow; no mmpolicy. Exits with 1 if
# a version behaves otherwise, with 2 if something for the run is missing.
set -euo pipefail
command -v strace >/dev/null || { echo "missing: strace"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv || { echo "missing: venv of python3"; exit 2; }
echo "kernel: $(uname -r), $(python3 --version)"

# Prints what a first buffer makes the process say of huge pages.
says() {
	strace -f -qq -e trace=madvise,prctl -o trace "$@" venv/bin/python3 -c \
		'import pyarrow; pyarrow.allocate_buffer(100)'
	if grep -q 'PR_SET_THP_DISABLE.* = 0$' trace; then
		echo forbidden
	elif grep -q 'madvise(0x[0-9a-f]*, 1073741824, MADV_HUGEPAGE) = 0$' trace; then
		echo asked
	else
		echo -
	fi
}

while read -r version without with; do
	venv/bin/pip install --quiet --only-binary :all: "pyarrow==$version" ||
		{ echo "no wheel of pyarrow $version for this Python"; exit 2; }
	found="$(says env -u MIMALLOC_ALLOW_THP) $(says env MIMALLOC_ALLOW_THP=0)"
	echo "$version: ${found/ /, }"
	[ "$found" = "$without $with" ] || exit 1
done <<'SEEN'
21.0.0 asked asked
22.0.0 - -
23.0.0 - -
24.0.0 - forbidden
25.0.1 asked forbidden
26.0.1 asked forbidden
SEEN
