#include "ops/attention.hpp"

#include <stdexcept>

namespace dsedge {

// Each op's file defines its record. A kind of instruction without one is an error of the linker.
#define RECORD(Name, kind)
#define INSTRUCTION(Name, kind) extern const Op k##Name##Op;
#define FIELD(Type, name)
#define END(Name)
#include "../../program.def"
#undef INSTRUCTION

namespace {

const Op *const kOps[] = {
#define INSTRUCTION(Name, kind) &k##Name##Op,
#include "../../program.def"
#undef INSTRUCTION
};

} // namespace

const Op &op_at(size_t kind) { return *kOps[kind - 1]; } // kind 0 is no instruction

void verify_layers(const Program &program) {
  std::vector<bool> written(program.kv.layers.size());
  for (const Instruction &i : program.instructions) {
    const int32_t attended = attended_layer(i);
    if (attended != kNone && !written[static_cast<size_t>(attended)])
      throw std::invalid_argument("program: attention to a layer whose keys are not written yet");
    if (const KvWrite *write = std::get_if<KvWrite>(&i.operands)) {
      if (written[static_cast<size_t>(write->layer)])
        throw std::invalid_argument("program: a layer whose keys are written twice");
      written[static_cast<size_t>(write->layer)] = true;
    }
  }
}

} // namespace dsedge
