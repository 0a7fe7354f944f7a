// How a forward is cut into stages, which follow one another, and those into units, which threads work through.
#pragma once

#include "attention_plan.hpp"
#include "program.hpp"

namespace dsedge {

// With `by_rows` a unit takes a block of rows through all the instructions first … last - 1: what a thread reads of a row
// it wrote itself, and only attention has to wait for others. A unit must be worth unpacking the weights for. Otherwise
// there is one instruction, and a unit is a panel, a task of attention or a row of it.
struct Stage {
  int32_t first, last, units;
  bool by_rows;
};

// Where blocks of about equal work end. None: rows are too few to be cut for so many threads.
std::vector<int64_t> cut_rows(const Program &program, const std::vector<Segment> &segments, int64_t rows, int32_t threads);

} // namespace dsedge
