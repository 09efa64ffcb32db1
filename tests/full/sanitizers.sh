#!/usr/bin/env bash
# The tests of `live`, and programs in C on the verbs library, under AddressSanitizer (with LeakSanitizer) and ThreadSanitizer. Both come with the compiler; the second wants the
# standard library's sources too, so that it sees what that does to synchronise (rustup component add rust-src).
# Both are options that are not stable: RUSTC_BOOTSTRAP lets this compiler take them, for these builds only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=$(rustc -vV | sed -n 's/^host: //p')
sysroot=$(rustc --print sysroot)
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-1}
ran=no failed=no

has() { compgen -G "$sysroot/lib/rustlib/$target/lib/librustc*_rt.$1.a" >/dev/null; }

# sanitize NAME DIRECTORY OPTIONS... [--skip TEST...], where a name stands for all that contain it: every test in a process of its own where nextest is installed, else one after the other.
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

# verbs NAME RUNTIME DIRECTORY OPTIONS...: programs in C that use the library wrongly, and two that lose a process of theirs. The runtime is in the
# programs, where the library finds it.
verbs() {
    local name=$1 runtime folder program server status
    runtime=$(compgen -G "$sysroot/lib/rustlib/$target/lib/librustc*_rt.$2.a" | head -n 1)
    folder=$3/verbs
    if ! command -v cc >/dev/null || [ ! -f /usr/include/rdma/rdma_cma.h ]; then
        echo 'left out: programs in C on the verbs library, because cc or librdmacm-dev is not installed'
        return
    fi
    ran=yes
    echo "== $name: programs in C on the verbs library"
    RUSTFLAGS="-Zsanitizer=$name" timeout 3600 cargo build --locked -p railnet-verbs --lib --target "$target" --target-dir "$3" "${@:4}" ||
        { failed=yes; return; }
    mkdir -p "$folder"
    for program in libibverbs.so libibverbs.so.1 librdmacm.so librdmacm.so.1; do
        ln -sf "$(realpath "$3/$target/debug/librailnet_verbs.so")" "$folder/$program"
    done
    export LD_LIBRARY_PATH=$folder RAILNET_RDMA_ADDRESSES=127.0.0.1
    for program in misuse connections fork; do
        cc -g -O1 -pthread -o "$folder/$program" "crates/verbs/tests/c/$program.c" -Wl,--whole-archive "$runtime" -Wl,--no-whole-archive \
            -Wl,--export-dynamic -L "$folder" -lrdmacm -libverbs -lm -ldl -lrt -lresolv || { failed=yes; return; }
        [ "$program" = fork ] && continue
        if timeout 300 "$folder/$program" >"$folder/said" 2>&1; then
            echo "ok    $program"
        else
            printf 'FAILED %s\n%s\n' "$program" "$(cat "$folder/said")"
            failed=yes
        fi
    done
    # The child of the server ends when the pipe to it does.
    sleep 60 | "$folder/fork" server 21076 >"$folder/server" 2>&1 &
    until grep -q listening "$folder/server"; do sleep 0.2; kill -0 $! 2>/dev/null || break; done
    server=$(pgrep -o -f "$folder/fork server 21076")
    timeout 60 "$folder/fork" client 21076 >"$folder/client" 2>&1 &
    until grep -q connected "$folder/client"; do sleep 0.2; kill -0 $! 2>/dev/null || break; done
    kill -KILL "$server"
    wait $!
    status=$?
    if [ "$status" -eq 0 ] && ! grep -q Sanitizer "$folder/client" "$folder/server"; then
        echo 'ok    a server that is killed, with a child that lives on'
    else
        printf 'FAILED a server that is killed (status %s)\n%s\n' "$status" "$(cat "$folder/server" "$folder/client")"
        failed=yes
    fi
    unset LD_LIBRARY_PATH RAILNET_RDMA_ADDRESSES
}

directory=${CARGO_TARGET_DIR:-target}/sanitizers
if has asan; then
    # A child that is killed on purpose leaves what it had; only what a test itself loses counts.
    # Left out: the model checker, which switches stacks of its own, where LeakSanitizer finds no pointers; and the tests that stand
    # between the C library and those that start threads, as the sanitizers do themselves.
    ASAN_OPTIONS=detect_stack_use_after_return=1 sanitize address "$directory/address" --skip shared_memory::model \
        --skip every_rank_names_the_one_without
    ASAN_OPTIONS=detect_stack_use_after_return=1 verbs address asan "$directory/address"
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
    # What is not instrumented (the C library's own locks inside the programs) is not reported.
    TSAN_OPTIONS='halt_on_error=1 ignore_noninstrumented_modules=1' verbs thread tsan "$directory/thread" -Zbuild-std
fi
[ "$ran" = yes ] || exit 77
[ "$failed" = no ]
