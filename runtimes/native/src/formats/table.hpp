// The table of weight formats: a format is one file and one line here. Included inside an anonymous namespace, after
// simd/lanes.hpp; the engine and every kernel set compile their own copy.
#pragma once

#include "formats/codes.hpp"
#include "formats/floats.hpp"

#include "formats/float16.hpp"
#include "formats/float32.hpp"
#include "formats/int4_affine.hpp"
#include "formats/int4_sym.hpp"
#include "formats/int4_zp.hpp"
#include "formats/int8_sym.hpp"

template <typename... F> struct List {};
using Formats = List<Int4Sym, Int4Zp, Int4Affine, Int8Sym, Float16, Float32>;
