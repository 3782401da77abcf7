// The operations of this instruction set, as listed in core/ops.def.
#pragma once
#include "core/flops.h"
#include "core/ops.h"
#include "simd/isa.h"

#define FB_STRING_(x) #x
#define FB_STRING(x) FB_STRING_(x)
#define FB_JOIN_(a, b) a##b
#define FB_JOIN(a, b) FB_JOIN_(a, b)
#define FB_OPS(isa) FB_JOIN(isa, _ops)  // the function that returns a set's table

namespace fb::FB_ISA {

#define FB_OP(operation, result, parameters) result operation parameters;
#include "core/ops.def"

}  // namespace fb::FB_ISA
