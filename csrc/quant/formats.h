// The list of all tensor types. CONTRIBUTING.md has the steps for adding one.
//
// A type is a struct in its own header, with these members:
//
//   id, weights, bytes       GGML's number, as in a GGUF file, or for a type of our own a number that GGML does not
// use;
//                            weights and bytes of a block
//   scale, offset            the numbers in a block besides its codes (kNoField: none), for filling one at random
//   centre, spread           with uniformly random codes, an offset of centre * scale makes the mean of the weights 0,
//                            and their standard deviation is spread * scale
//   decode(block, out)       a block's weights in float32, in plain C++: the oracle for the other functions
//
// and, if an instruction set is compiled (quant/vectors.h):
//
//   run(row, i)              weights [32 i, 32 i + 32) of the row whose first block is at `row`, in float32
//
// and for AVX512-BF16:
//
//   bf16_runs(row, i)        the same in bf16, rounded once; two runs of a block of 256
//   has_codes                whether rows are multiplied as codes. If so, `dot_group` (a group of blocks of 32) or
//                            `dot_block` (one of 256), which simd/skinny_codes.h calls
//
//
// and, if its levels are bytes, so that they can be multiplied by x in eight bits (simd/skinny_bytes.h):
//
//   has_bytes                  true; false if there are none of the following
//   first_level, last_level    the range of the levels, and for blocks of 256 `parts`, the number of parts with a scale
//   byte_codes<bias>(block, i)    level + bias of run i of a block, as Bytes
//   byte_pair<bias>            may be absent; for AVX-512, the same of runs i and i + 1, or of two blocks of 32
//   numbers(block, scales, minima)   the scales and minima of a block of 256, one per lane; for blocks of 32,
//                              numbers(block, count, scales, offsets) of several
//   kMinimumSign               if there is an `offset`: 1 if it is added, -1 if it is subtracted
//
// Code that several types share is in quant/nibbles.h, quant/k_blocks.h, quant/level_blocks.h and quant/lookup.h.
#pragma once
#include <type_traits>

#include "quant/formats/affine8.h"
#include "quant/formats/bf16.h"
#include "quant/formats/f16.h"
#include "quant/formats/f32.h"
#include "quant/formats/iq1_s.h"
#include "quant/formats/iq2_s.h"
#include "quant/formats/iq2_xs.h"
#include "quant/formats/iq2_xxs.h"
#include "quant/formats/iq3_s.h"
#include "quant/formats/iq3_xxs.h"
#include "quant/formats/iq4_nl.h"
#include "quant/formats/iq4_xs.h"
#include "quant/formats/mxfp4.h"
#include "quant/formats/q2_k.h"
#include "quant/formats/q3_k.h"
#include "quant/formats/q4_0.h"
#include "quant/formats/q4_1.h"
#include "quant/formats/q4_k.h"
#include "quant/formats/q5_0.h"
#include "quant/formats/q5_1.h"
#include "quant/formats/q5_k.h"
#include "quant/formats/q6_k.h"
#include "quant/formats/q8_0.h"
#include "quant/formats/ternary.h"
#include "quant/formats/tq1_0.h"
#include "quant/formats/tq2_0.h"

// Ordered by number.
#define FB_FORMATS(X) \
    X(F32)            \
    X(F16)            \
    X(Q4_0)           \
    X(Q4_1)           \
    X(Q5_0)           \
    X(Q5_1)           \
    X(Q8_0)           \
    X(Q2_K)           \
    X(Q3_K)           \
    X(Q4_K)           \
    X(Q5_K)           \
    X(Q6_K)           \
    X(IQ2_XXS)        \
    X(IQ2_XS)         \
    X(IQ3_XXS)        \
    X(IQ1_S)          \
    X(IQ4_NL)         \
    X(IQ3_S)          \
    X(IQ2_S)          \
    X(IQ4_XS)         \
    X(BF16)           \
    X(TQ1_0)          \
    X(TQ2_0)          \
    X(MXFP4)          \
    X(AFFINE8)        \
    X(TERNARY)

namespace fb {

enum class TensorType : int {
#define FB_MEMBER(T) T = FB_SET::formats::T::id,
    FB_FORMATS(FB_MEMBER)
#undef FB_MEMBER
};

namespace FB_SET {

// The format of a type. It is undefined for a type that is not in the list, so that code for it does not compile.
template <TensorType type>
struct FormatOf;
#define FB_FORMAT(T)                                                                                        \
    template <>                                                                                             \
    struct FormatOf<TensorType::T> {                                                                        \
        using Format = formats::T;                                                                          \
        static_assert(Format::weights <= 256, "decode.h and the runs count on it");                         \
        static_assert(Format::weights == 1 || Format::weights % 32 == 0, "blocks are cut into runs of 32"); \
    };
FB_FORMATS(FB_FORMAT)
#undef FB_FORMAT

template <TensorType type>
using Format = typename FormatOf<type>::Format;

}  // namespace FB_SET

// Calls body with the type as a compile-time constant, or without it for a number that no type has.
template <class Body>
FB_INLINE constexpr void with_type(TensorType type, const Body& body) {
    switch (type) {
#define FB_CASE(T) \
    case TensorType::T: return body(std::integral_constant<TensorType, TensorType::T>{});
        FB_FORMATS(FB_CASE)
#undef FB_CASE
    }
}

struct BlockShape {
    int weights;  // weights in a block; 0 for a number that no type has
    int bytes;
};

FB_INLINE constexpr BlockShape block_shape(TensorType type) {
    switch (type) {
#define FB_CASE(T) \
    case TensorType::T: return {FB_SET::formats::T::weights, FB_SET::formats::T::bytes};
        FB_FORMATS(FB_CASE)
#undef FB_CASE
    }
    return {0, 0};
}

}  // namespace fb
