#!/usr/bin/env bash
# The C++ tests for 64-bit Arm, emulated: a processor with int8 matrix products (i8mm), one with dot products alone
# (neon) and one with neither. Needs CMake and Debian's g++-aarch64-linux-gnu and qemu-user.
set -euo pipefail
cd "$(dirname "$0")/../../.."

mkdir -p build
build=build/arm
{ cmake -S . -B "$build" -DDSEDGE_PYTHON=OFF -DDSEDGE_TESTS=ON -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ &&
    cmake --build "$build" --parallel "$(nproc)"; } >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
for processor in "max:portable neon i8mm" "neoverse-n1:portable neon" "cortex-a53:portable"; do
    for test in test_kernels test_ops test_engine test_kv; do
        said=$(qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "${processor%%:*}" "$build/tests/runtimes/native/cpp/$test")
        echo "${processor%%:*}, $test: $said"
        [[ $said == "${processor#*:} all passed" ]] || { echo "expected the kernel sets ${processor#*:}"; exit 1; }
    done
done
