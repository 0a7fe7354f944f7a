#!/usr/bin/env bash
# The C++ tests under the sanitizers: address and undefined behaviour together, then threads. Needs CMake and a compiler.
# Lightly optimized: at -O3 the compiler would need ten times as long.
set -euo pipefail
cd "$(dirname "$0")/../../.."

mkdir -p build
for sanitizer in address,undefined thread; do
    build="build/sanitize-${sanitizer%%,*}"
    { cmake -S . -B "$build" -DDSEDGE_PYTHON=OFF -DDSEDGE_TESTS=ON -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_CXX_FLAGS="-O1 -fsanitize=$sanitizer -fno-sanitize-recover=all -fno-omit-frame-pointer" &&
        cmake --build "$build" --parallel "$(nproc)"; } >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
    for test in test_engine test_kernels test_kv test_ops test_readers test_schema; do
        echo "$sanitizer, $test: $("$build/tests/runtimes/native/cpp/$test")"
    done
done
