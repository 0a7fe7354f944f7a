#!/usr/bin/env bash
# The C++ tests under the sanitizers: address and undefined behaviour together, then threads. Needs CMake and a compiler.
set -euo pipefail
cd "$(dirname "$0")/../../.."

mkdir -p build
for sanitizer in address,undefined thread; do
    build="build/sanitize-${sanitizer%%,*}"
    cmake -S . -B "$build" -DDSEDGE_PYTHON=OFF -DDSEDGE_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DCMAKE_CXX_FLAGS="-fsanitize=$sanitizer -fno-sanitize-recover=all -fno-omit-frame-pointer" >"$build.log" 2>&1 ||
        { cat "$build.log"; exit 1; }
    cmake --build "$build" --parallel --target test_engine >>"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
    echo "$sanitizer: $("$build/tests/runtimes/native/cpp/test_engine")"
done
