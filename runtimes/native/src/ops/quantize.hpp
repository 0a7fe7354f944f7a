// What the ops that leave codes have in common.
#pragma once

#include "ops/op.hpp"

namespace dsedge {

// Throws unless `codes` holds the codes of rows of `width` floats.
void verify_codes(const Checker &check, int32_t codes, int64_t width, float crest);

// Whether an instruction whose codes the next one reads may lead it: what else it writes the next does not read, and the
// next writes nothing that it reads or writes.
bool leads_by_codes(const Instruction &i, int32_t codes, const Instruction &next);

} // namespace dsedge
