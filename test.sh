#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All tests, from a machine that has nothing: installs what is missing, then runs the parts in order,
# cheap ones first. ./test.sh PART... runs some of them; ./test.sh --list names them. A log per part
# lies in build/test-logs. Exits 0 only when every part ran, had tests, and all of them passed.
set -u
cd "$(dirname "$0")"
export LC_ALL=C.UTF-8
export SPLASH_REAL="$PWD/build/splash" # the suites that can, run on the real engine too

c_parts="lint build unit kernels toy nano clang asan fuzz tsan neon torture"
# Python suites of these names must exist; others are found by wildcard.
suites="explain launcher text pack parity cli http"
for folder in tests/*/; do
    name=$(basename "$folder")
    case " $suites " in *" $name "*) continue ;; esac
    [ -z "$(find "$folder" -maxdepth 1 -name 'test_*.py')" ] || suites="$suites $name"
done
parts="$c_parts $suites"
logs=build/test-logs
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
[ "$jobs" -le 8 ] || jobs=8
mkdir -p "$logs"

run_make() { make -s -j"$jobs" "$@"; }

# Runs each program of a list; a crash or a non-zero exit is reported as one failed test.
run_programs() {
    status=0
    for program in "$@"; do
        [ -x "$program" ] || continue
        echo "== $program ${SPL_TEST_TIER:+(tier $SPL_TEST_TIER)}"
        before=$(grep -c '^\[  FAILED  \]' "$log")
        "$program" </dev/null || {
            code=$?
            [ "$(grep -c '^\[  FAILED  \]' "$log")" != "$before" ] || echo "CHECK failed: $program ended with status $code"
            status=1
        }
    done
    return $status
}
built() { run_make BUILD=build CC=gcc all fake tests || { echo 'CHECK failed: build'; return 1; }; } # of today's sources, also for a part alone
programs() { # build folder, kinds...: the test programs made from sources that exist
    build=$1
    shift
    for kind in "$@"; do
        for source in tests/"$kind"/test_*.c; do [ ! -f "$source" ] || echo "$build/${source%.c}"; done
    done
}
check() { # name, command...: one test of a part that is no test program
    name=$1
    shift
    if "$@"; then echo "CHECK passed: $name"; else echo "CHECK failed: $name"; return 1; fi
}
# Tiers this processor runs, by the engine's own word, weakest first.
tiers() { build/splash explain --model toy --json 2>/dev/null | python3 -c 'import json, sys; print(*json.load(sys.stdin)["kernels"]["usable"])'; }

part_lint() {
    status=0
    for script in tools/lint/*.sh; do # symbols.sh looks at the library: part build
        case $script in */symbols.sh) continue ;; esac
        check "$(basename "$script" .sh)" sh "$script" || status=1
    done
    for script in splash test.sh tools/*.sh tools/lint/*.sh; do sh -n "$script" || { echo "CHECK failed: $script"; status=1; }; done
    return $status
}
part_build() { check gcc run_make BUILD=build CC=gcc all fake tests fuzzers && check symbols sh tools/lint/symbols.sh; }
part_clang() { check clang run_make BUILD=build-clang CC=clang all tests && run_programs $(programs build-clang unit); }
part_unit() { built && MALLOC_PERTURB_=165 run_programs $(programs build unit); } # nothing may count on zeroed memory
part_kernels() { built && run_programs $(programs build kernels); }
part_toy() {
    built || return 1 # once, and before tiers asks the engine
    status=0
    for tier in $(tiers || echo ref); do
        SPL_TEST_TIER=$tier run_programs $(programs build toy) || status=1
    done
    return $status
}
part_nano() { built && run_programs $(programs build nano); }
part_torture() { built && run_programs $(programs build torture); }
part_asan() {
    check 'asan build' run_make BUILD=build-asan MODE=asan CC=clang tests fuzzers &&
        UBSAN_OPTIONS=print_stacktrace=1 run_programs $(programs build-asan unit kernels toy torture)
}
part_tsan() {
    threaded=$(grep -lE 'pthread|spl_team|rig_open|splash_open|spl_engine' tests/unit/test_*.c tests/toy/test_*.c tests/torture/test_*.c 2>/dev/null |
        grep -v test_law) # statistics over many seeds: the same code as test_engine, far too long here
    targets=
    for source in $threaded; do targets="$targets build-tsan/${source%.c}"; done
    check 'tsan build' run_make BUILD=build-tsan MODE=tsan CC=clang $targets && run_programs $targets
}
part_fuzz() {
    status=0
    check 'asan fuzzers' run_make BUILD=build-asan MODE=asan CC=clang fuzzers || return 1
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        corpus=tests/fuzz/corpus/${name#fuzz_}
        [ -n "$(ls "$corpus" 2>/dev/null)" ] || { echo "CHECK failed: $name has no corpus in $corpus"; status=1; continue; }
        check "$name, $(ls "$corpus" | wc -l) inputs" build-asan/tests/fuzz/"$name" "$corpus"/* || status=1
    done
    return $status
}
part_neon() {
    case $(uname -m) in
    x86_64) run_make neon-test ;;
    *) check 'this machine runs NEON itself: part kernels' true ;;
    esac
}
run_suite() { # a Python suite
    [ -n "$(find "tests/$1" -name 'test_*.py' 2>/dev/null | head -n 1)" ] || { echo "CHECK failed: tests/$1 has no tests"; return 1; }
    run_make BUILD=build CC=gcc all fake || return 1
    PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python -m pytest -q -p no:cacheprovider "tests/$1" </dev/null
}

# Sums what cmocka, its stand-in under the Arm emulator, pytest and check printed: "passed failed skipped".
count() {
    awk '
        /^\[  PASSED  \] [0-9]+ test/ { passed += $4 }
        /^\[  FAILED  \] [0-9]+ test/ { failed += $4 }
        /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
        /^CHECK passed: / || /^\[ OK \] / { passed++ }
        /^CHECK failed: / { failed++ }
        /^(=+ )?[0-9]+ (passed|failed|skipped|error)/ && / in [0-9.]+/ {
            n = split($0, word, /[ ,=]+/)
            for (i = 2; i <= n; i++) {
                if (word[i] == "passed") passed += word[i - 1]
                if (word[i] ~ /^(failed|errors?)$/) failed += word[i - 1]
                if (word[i] == "skipped") skipped += word[i - 1]
            }
        }
        END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

if [ "${1:-}" = --list ]; then
    echo $parts
    exit 0
fi
for part in "$@"; do
    case " $parts " in *" $part "*) ;; *) echo "no part $part; parts: $parts" >&2; exit 2 ;; esac
done
if ! tools/setup-tests.sh; then
    echo "the machine could not be set up for the tests"
    exit 1
fi

total_passed=0 total_failed=0 total_skipped=0 bad_parts=
for part in ${*:-$parts}; do
    log=$logs/$part.log
    started=$(date +%s)
    : >"$log"
    case " $suites " in
    *" $part "*) run_suite "$part" >>"$log" 2>&1 ;;
    *) "part_$part" >>"$log" 2>&1 ;;
    esac
    code=$?
    set -- $(count "$log")
    if [ "$code" != 0 ] && [ "$2" = 0 ]; then set -- "$1" 1 "$3"; fi # it failed before a test could say so
    if [ "$code" = 0 ] && [ "$1" = 0 ]; then
        echo "no test ran" >>"$log"
        set -- 0 1 "$3"
    fi
    total_passed=$((total_passed + $1)) total_failed=$((total_failed + $2)) total_skipped=$((total_skipped + $3))
    printf '%-8s %5d passed %4d failed %4d skipped  %4d s\n' "$part" "$1" "$2" "$3" $(($(date +%s) - started))
    if [ "$2" != 0 ]; then
        bad_parts="$bad_parts $part"
        echo "---- last lines of $log"
        tail -n 40 "$log"
        echo "----"
    fi
done
[ -z "$bad_parts" ] || echo "failed parts:$bad_parts"
echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
[ -z "$bad_parts" ]
