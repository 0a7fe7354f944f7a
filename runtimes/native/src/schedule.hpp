// How a forward is cut into stages, which follow one another, and those into units, which threads work through.
#pragma once

#include "attention_plan.hpp"
#include "program.hpp"

namespace dsedge {

// What a unit of a stage is, and what is done with it.
//   kBlock   a block of rows, taken through all the instructions: what a thread reads of a row it wrote itself, and only
//            attention has to wait for others. Worth unpacking the weights for
//   kRow     a row, taken through all the instructions, none of which is a linear or attention
//   kPart    a panel of a linear or a task of attention, which is the last instruction. Another one before it prepares the
//            only row that there is: each thread does that for itself, which is less than waiting for one that does
enum class Unit { kBlock, kRow, kPart };

// Instructions first … last - 1.
struct Stage {
  int32_t first, last, units;
  Unit unit;
};

// Which instructions each thread can do for itself where the next one is done in parts, and there is one row: nothing that
// they read or write is written by that one, and of the queries and keys that a store turns nobody asks later.
std::vector<bool> find_preparing(const Program &program);

// Where blocks of about equal work end. None: rows are too few to be cut for so many threads, or too large.
std::vector<int64_t> cut_rows(const Program &program, const std::vector<Segment> &segments, int64_t rows, int32_t threads);

} // namespace dsedge
