// The records of ../program.def as structs, and their reading from named fields.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dsedge {

constexpr int32_t kNone = -1;

// The types of fields. An id is a row of a table of the program, or kNone.
struct Id {
  int32_t id = kNone;
  operator int32_t() const { return id; }
};
struct Reads : Id {};
struct MaybeReads : Id {};
struct Writes : Id {};
struct MaybeWrites : Id {};
struct MatrixId : Id {};
struct VectorId : Id {};
struct RopeId : Id {};
struct MaybeRope : Id {};
struct LayerId : Id {};
struct WritesList {
  std::vector<int32_t> ids;
};
struct MaybeVectorList {
  std::vector<int32_t> ids;
};
struct Activation {
  int32_t kind = 0; // an index into kActivations
};
inline const char *const kActivations[] = {"silu", "gelu_tanh"};
using Integer = int64_t;
using Real = float;
using Flag = bool;
using Text = std::string;
using IntegerList = std::vector<int64_t>;
struct RunRecord;
struct RunList {
  std::vector<RunRecord> records;
};

#define RECORD(Name, kind)                                                                                             \
  struct Name {                                                                                                        \
    static constexpr const char *kKind = #kind;
#define INSTRUCTION(Name, kind) RECORD(Name, kind)
#define FIELD(Type, name) Type name{};
#define END(Name)                                                                                                      \
  }                                                                                                                    \
  ;
#include "../program.def"
#undef RECORD
#undef FIELD
#undef END

// Calls visit(name, field) for each field of a record.
#define RECORD(Name, kind)                                                                                             \
  template <typename Visit> void each_field([[maybe_unused]] Name &record, const Visit &visit) {
#define FIELD(Type, name) visit(#name, record.name);
#define END(Name) }
#include "../program.def"
#undef INSTRUCTION
#undef RECORD
#undef FIELD
#undef END

// The operands of an instruction, of any kind.
using Operands = std::variant<std::monostate
#define RECORD(Name, kind)
#define INSTRUCTION(Name, kind) , Name
#define FIELD(Type, name)
#define END(Name)
#include "../program.def"
#undef INSTRUCTION
#undef RECORD
#undef FIELD
#undef END
                              >;

// The schema in one line for each record, which Python compares with its own.
std::string schema();

// What comes from outside, before it is a record.
struct Value;
using Fields = std::vector<std::pair<std::string, Value>>;
struct Value {
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<Value>, Fields> data;
};

// All of these throw std::invalid_argument, which names the record and the field: for an unknown kind, for fields that are
// missing, unknown or given twice, and for a value of another type.
template <typename Record> Record decode(const Fields &fields);
Operands decode_instruction(const Fields &fields);

} // namespace dsedge
