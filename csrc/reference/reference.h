// The reference kernels: the oracle for all others, without optimisation.
//
// The rules of this folder: one thread; plain loops in the order of the formula; every sum in double; every view read
// and written in its own type (f32, bf16 or f64, in any mix); nothing blocked, fused or reused. If a fast kernel and
// this folder disagree, the fast kernel is wrong. core/ops.def documents the operations.
#pragma once
#include "core/ops.h"

namespace fb::reference {

double load(const View& view, int64_t row, int64_t col);
void store(const View& view, int64_t row, int64_t col, double value);
// view[row, col] = value, plus the old element if `accumulate`.
void write(const View& view, int64_t row, int64_t col, double value, bool accumulate);

#define FB_OP(operation, result, parameters) result operation parameters;
#include "core/ops.def"

}  // namespace fb::reference
