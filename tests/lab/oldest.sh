#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs the first commands of a new user in a Debian 11 (tests/lab/kernels/packages.sh): with
# mmpolicy.pyz, then with the wheel. Fails at a missing verb, or at an internal error of mmpolicy.
set -euo pipefail
cd /srv

says() {
	local text=$1 found
	shift
	found=$("$@" 2>&1) || true
	[[ $found =~ $text ]] || {
		echo "the output of $* has no '$text':"
		echo "$found"
		exit 1
	}
}

looks() { # COMMAND...
	"$@" >/dev/null
	"$@" thp >/dev/null
	"$@" top -n 1 --interval 1 >/dev/null
	says "one character: 4 kB" "$@" map $$
	says "FOLIO" "$@" map $$
	says "What works here" "$@" doctor
	says "EMPTY_KIB|debugfs|lockdown" "$@" trim --pid $$ --dry-run
	"$@" ab run --dry-run --metric 'vmstat.pgfault/s lower' \
		--treatment hugepages-64kB/enabled=always >/dev/null
}

python3 --version
looks python3 mmpolicy.pyz
says "this command needs the Python library numpy" python3 mmpolicy.pyz bench -- true
python3 -m venv v
v/bin/pip install --quiet --quiet --quiet --no-index --find-links wheels "$(echo ./*.whl)[ab]"
looks v/bin/mmpolicy
# Longer than the interval at which the bench checks for its end.
says "means of 3 runs" v/bin/mmpolicy bench --runs 3 --html bench.html -- sleep 0.3
grep -q '<svg' bench.html
says kernel/needs.h python3 -m tarfile -l mmpolicy-*.tar.gz
