"""Written by CMakeLists.txt where the engine cannot be built."""

MISSING: str
