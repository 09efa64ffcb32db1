#!/usr/bin/env bash
# The tests of `live` under AddressSanitizer (with LeakSanitizer) and ThreadSanitizer. Both come with the compiler; the second wants the
# standard library's sources too, so that it sees what that does to synchronise (rustup component add rust-src).
# Both are options that are not stable: RUSTC_BOOTSTRAP lets this compiler take them, for these builds only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=$(rustc -vV | sed -n 's/^host: //p')
sysroot=$(rustc --print sysroot)
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-1}
ran=no failed=no

has() { compgen -G "$sysroot/lib/rustlib/$target/lib/librustc*_rt.$1.a" >/dev/null; }

# sanitize NAME DIRECTORY OPTIONS... [--skip TEST...], where a name stands for all that contain it: every test in a process of its own where nextest is installed, else by turns.
sanitize() {
    local name=$1 directory=$2 options=() skipped=() filter='all()'
    shift 2
    while [ $# -gt 0 ]; do
        if [ "$1" = --skip ]; then
            skipped+=(--skip "$2")
            filter+=" - test($2)"
            shift
        else
            options+=("$1")
        fi
        shift
    done
    ran=yes
    echo "== $name"
    options+=(--locked -p railnet-live --target "$target" --target-dir "$directory" --no-fail-fast)
    if cargo nextest --version >/dev/null 2>&1; then
        RUSTFLAGS="-Zsanitizer=$name" timeout 3600 cargo nextest run "${options[@]}" -E "$filter" || failed=yes
    else
        RUSTFLAGS="-Zsanitizer=$name" timeout 3600 cargo test --tests "${options[@]}" -- --test-threads=1 "${skipped[@]}" || failed=yes
    fi
}

directory=${CARGO_TARGET_DIR:-target}/sanitizers
if has asan; then
    # A child that is killed on purpose leaves what it had; only what a test itself loses counts.
    # Left out: the model checker, which switches stacks of its own, where LeakSanitizer finds no pointers; and the tests that stand
    # between the C library and those that start threads, as the sanitizers do themselves.
    ASAN_OPTIONS=detect_stack_use_after_return=1 sanitize address "$directory/address" --skip shared_memory::model \
        --skip every_rank_names_the_one_without
else
    echo "left out: AddressSanitizer, because this compiler has no runtime for it on $target"
fi
if ! has tsan; then
    echo "left out: ThreadSanitizer, because this compiler has no runtime for it on $target"
elif [ ! -f "$sysroot/lib/rustlib/src/rust/library/Cargo.lock" ]; then
    echo 'left out: ThreadSanitizer, because the sources of the standard library are not installed (rustup component add rust-src)'
else
    # Left out: those, as above; one test that counts packets of a send, and one whose ranks sleep for so long as the others take; both depend on the
    # pace, which is a tenth of the usual one.
    TSAN_OPTIONS=halt_on_error=1 sanitize thread "$directory/thread" -Zbuild-std --skip shared_memory::model \
        --skip every_rank_names_the_one_without \
        --skip one_send_carries_many_packets_and_an_acknowledgement_rides_behind_data \
        --skip a_program_that_ends_in_the_middle_of_a_call_with_a_failure_or_by_a_signal_is_lost
fi
[ "$ran" = yes ] || exit 77
[ "$failed" = no ]
