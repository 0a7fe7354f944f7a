// Products with panels of 32 rows of a weight, for the ops that have some.
#pragma once

#include "ops/op.hpp"

namespace dsedge {

// Throws unless an input, floats or codes, fits the matrix, and biases do.
void verify_product(const Checker &check, int32_t input, const MatrixShape &matrix, const MaybeVectorList &biases);
void reserve_product(const MatrixShape &matrix, Room &room);
Cost product_cost(const MatrixShape &matrix);

// Before products with `rows` of an input: what each thread needs to know once of codes. Which blocks are flagged or, with
// a lead, the row itself, which the thread with the first task (`first`) makes for later instructions too.
void read_input(Context &ctx, const Instruction &i, int32_t input, const Instruction *lead, RowRange rows, bool first,
                Scratch &scratch);
// results [rows][32] = a panel times some rows of the input.
void product(const Context &ctx, int32_t input, const Matrix &matrix, int64_t panel, RowRange rows,
             const Scratch &scratch, float *results);
// The same with columns `first` … of the input, as many as the matrix has. Of codes both are whole blocks.
void product_of_some(const Context &ctx, int32_t input, int64_t first, const Matrix &matrix, int64_t panel, RowRange rows,
                     const Scratch &scratch, float *results);
// Adds numbers first … first + count - 1 of a bias, or nothing.
void add_bias(const Context &ctx, int32_t bias, int64_t first, int64_t count, int64_t rows, float *results);

} // namespace dsedge
