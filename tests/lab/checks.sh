# SPDX-License-Identifier: GPL-2.0
# Part of ./dev: the checks of the sources and the tests, and their count.
# shellcheck shell=bash

# Numbers of tests. Each kind of test adds to them; finish() prints the totals.

PASSED=0 FAILED=0 SKIPPED=0

add_counts() {
	PASSED=$((PASSED + $1)) FAILED=$((FAILED + $2)) SKIPPED=$((SKIPPED + $3))
}

# check NAME COMMAND...: one test, with its output only if it fails
check() {
	local name=$1 start=$SECONDS log
	log=$LOG/check-${name//[^a-z0-9]/-}.log
	shift
	mkdir -p "$LOG"
	("$@") >"$log" 2>&1 &
	if wait $!; then
		say "ok    $name ($((SECONDS - start)) s)"
		add_counts 1 0 0
	else
		tail -n 60 "$log"
		say "FAIL  $name ($((SECONDS - start)) s; log: $log)"
		add_counts 0 1 0
	fi
}

fail() {
	say "FAIL  $*"
	add_counts 0 1 0
}

finish() {
	say "$PASSED passed, $FAILED failed, $SKIPPED skipped"
	[ "$FAILED" = 0 ] && [ "$PASSED" != 0 ]
}

lint() {
	MMPOLICY_SOURCE=$(source_tree) run_pytest lint -qq --no-header -n "$(nproc)" \
		-o console_output_style=classic
}

# Runs the unit tests of the policies, in user space, and adds their counts.
unit() {
	local log=$LOG/unit.log counts status=0
	[ -x "$TREE/tests/unit/run" ] || { fail "unit: tests/unit/run is missing" && return; }
	"$TREE/tests/unit/run" 2>&1 | tee "$log" || status=$?
	read -ra counts <<<"$(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed.*/\1 \2/p' "$log" | tail -n 1)"
	if [ ${#counts[@]} = 2 ]; then
		add_counts "${counts[@]}" 0
		[ "$status" = 0 ] || [ "${counts[1]}" != 0 ] ||
			fail "unit: tests/unit/run ended with status $status"
	else
		fail "unit: no closing line \"N passed, M failed\" (log: $log)"
	fi
}

# libFuzzer searches for texts that the parser reads differently than the model of
# tests/unit/test_text.c.
fuzz_texts() {
	local here=$TREE/tests/unit program=$CACHE/fuzz-texts
	clang -std=gnu11 -fwrapv -Wall -Werror -O1 -g -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all -DLIBFUZZER -I"$here/shim" -I"$TREE/module" \
		-o "$program" "$here/test_text.c" "$TREE/module/control/text.c"
	cd "$CACHE"		# libFuzzer writes a failing text to the current folder
	"$program" -max_len=100 -max_total_time=20
}

# Runs a command with the Go that need_go() put into the cache: with_go COMMAND...
with_go() {
	PATH=$CACHE/go/usr/lib/go-1.24/bin:$PATH CGO_ENABLED=0 GOTOOLCHAIN=local \
		GOFLAGS="-mod=readonly -modcacherw -buildvcs=false" \
		GOMODCACHE=$CACHE/go/mod GOCACHE=$CACHE/go/build "$@"
}

# Checks and builds a Go program of a single file: go_program FOLDER NAME
go_program() {
	cd "$TREE/$1"
	[ -z "$(with_go gofmt -d . | tee /dev/stderr)" ]
	with_go go vet ./...
	with_go go test ./...
	with_go go build -trimpath -ldflags "-s -w" -o "$CACHE/go/$2" .
	! readelf --program-headers "$CACHE/go/$2" | grep -q INTERP
}

# Prints the file with the tests of a kind that passed in an interrupted run, on these sources
# and kernels: resume_file KIND
resume_file() {
	local flavor kernels=
	for flavor in "${FLAVORS[@]}"; do
		kernels+=" $(readlink "$(kernel_home "$flavor")/current" || true)"
	done
	echo "$CACHE/resume/$1-$({
		find "$TREE" -name '.*' ! -path "$TREE" -prune -o -type f ! -name '*.pyc' -print0 | sort -z |
			xargs -0 sha256sum
		echo "$SERIES ${FLAVORS[*]} $kernels ${MMPOLICY_FLAVORS-} ${KSRC-}"
	} | hash_of)"
}

# Merges the tests that passed before with those of the last interrupted run; prints the number.
resume() {
	mkdir -p "${1%/*}"
	find "${1%/*}" -type f -mtime +1 -delete
	[ ! -e "$1.now" ] || cat "$1.now" >>"$1"
	rm -f "$1.now"
	[ ! -s "$1" ] || wc -l <"$1"
}

# run_pytest KIND ARGUMENT...: runs the tests in tests/KIND
run_pytest() {
	local kind=$1 report counts status=0 file before
	report=$LOG/pytest-$1-$(date +%m%d-%H%M%S).xml
	shift
	[ -d "$TREE/tests/$kind" ] || { fail "$kind: tests/$kind is missing" && return; }
	file=$(resume_file "$kind")
	before=$(resume "$file")
	[ -z "$before" ] || say "$kind: $before tests passed before the last run was stopped"
	find "$LOG" -name 'pytest-*.xml' -mtime +1 -delete
	(cd "$TREE" && MMPOLICY_RESUME=$file "$VENV/bin/pytest" -p no:cacheprovider -p lab.resume \
		--junitxml="$report" --durations=10 --durations-min=5 "$@" "tests/$kind") || status=$?
	read -ra counts <<<"$(sed -nE 's/.*<testsuite .*errors="([0-9]+)" failures="([0-9]+)" skipped="([0-9]+)" tests="([0-9]+)".*/\1 \2 \3 \4/p' "$report" 2>/dev/null)"
	if [ "$status" = 5 ] && [ -n "$before" ]; then
		status=0	# pytest had no test left to run
	elif [ ${#counts[@]} = 4 ] && [ "${counts[3]}" != 0 ]; then
		add_counts $((counts[3] - counts[2] - counts[1] - counts[0])) \
			$((counts[0] + counts[1])) "${counts[2]}"
	elif [ "$status" = 0 ]; then
		fail "$kind: pytest counted no test (report: $report)"
	fi
	[ -z "$before" ] || add_counts "$before" 0 0
	# pytest exits with 0 if all passed and with 1 if some failed, which are counted above.
	# With any other status it has not run all tests.
	if [ "$status" -gt 1 ] || [ "$status" = 1 ] && [ $((${counts[0]-0} + ${counts[1]-0})) = 0 ]; then
		fail "$kind: pytest ended early, with status $status"
	fi
}

# Builds kernels and modules of the flavors, then runs their tests:
# guest_tests KIND [OPTION OF PYTEST...]
guest_tests() {
	local flavor
	"$TREE/dev" kernel --series "$SERIES" ${ARCH:+--arch "$ARCH"} "${FLAVORS[@]/#/--}" || { fail "kernels" && return; }
	for flavor in "${FLAVORS[@]}"; do
		if "$TREE/dev" module --series "$SERIES" ${ARCH:+--arch "$ARCH"} "--$flavor"; then
			add_counts 1 0 0
		else
			fail "module for the $flavor kernel"
		fi
	done
	export MMPOLICY_SERIES=$SERIES MMPOLICY_FLAVORS="${FLAVORS[*]} $1"
	run_pytest guest -v -n "$(guests_at_once)" --dist loadscope --no-loadscope-reorder "${@:2}"
}

# Boots Debian's cloud kernel for arm64 once, and tests one policy. If apt has no packages of
# arm64, the test counts as skipped.
test_on_arm64() {
	if ! "$TREE/dev" kernel --arch arm64; then
		say "skipped: the module on arm64, as the arm64 kernel cannot be fetched here"
		add_counts 0 0 1
		return
	fi
	choose_arch arm64
	need_guest_tools
	guest_tests arm64 -k test_adaptive
}

# Prints how many guests may run at a time: a guest keeps one CPU busy for two thirds of the time,
# and takes up to 3 GiB.
guests_at_once() {
	local most room
	most=$(($(nproc) * 3 / 2))
	room=$(awk '/^MemAvailable:/ { print int($2 / 3145728) }' /proc/meminfo)
	echo $((room < 1 ? 1 : room < most ? room : most))
}
