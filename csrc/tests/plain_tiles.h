// amx/tiles.h in plain C++, for the kernel tests: what each operation reads, computes and writes, to the last bit. The
// products written for AMX then run, and are checked, on every machine.
#pragma once
#include <cfloat>
#include <cstdio>
#include <cstdlib>

#include "simd/isa.h"

namespace fb::FB_ISA {

class Tiles {
public:
    // A thread that uses tiles and has not set their shapes is killed.
    struct Use {
        Use() { demand(!in_use()), in_use() = true; }
        ~Use() { in_use() = false; }
        Use(const Use&) = delete;
    };

    // 16 rows, `stride_bytes` apart, of 32 bf16: 16 rows of C by 32 reduction steps.
    template <int i>
    void load_a(const uint16_t* rows, int64_t stride_bytes) {
        load(a_[i], rows, stride_bytes);
    }
    // 16 rows of 16 pairs of bf16: 16 pairs of reduction steps by 16 columns of C.
    template <int j>
    void load_b(const uint32_t* rows, int64_t stride_bytes) {
        load(b_[j], rows, stride_bytes);
    }
    // C[i][j] += A[i] B[j]. Even and odd steps are summed apart, then together, then added to C.
    template <int i, int j>
    void dot() {
        demand(in_use());
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++) {
                float sums[2] = {};
                for (int k = 0; k < 16; k++)
                    for (int half = 0; half < 2; half++)
                        sums[half] = flushed(flushed(bf16_to_f32(a_[i][m][2 * k + half])) *
                                                 flushed(bf16_to_f32(b_[j][k][2 * n + half])) +
                                             sums[half]);
                c_[i][j][m][n] = flushed(c_[i][j][m][n] + flushed(sums[0] + sums[1]));
            }
    }
    template <int i, int j>
    void store(float* rows, int64_t stride_bytes) {
        demand(in_use());
        for (int m = 0; m < 16; m++) std::memcpy(reinterpret_cast<uint8_t*>(rows) + m * stride_bytes, c_[i][j][m], 64);
    }

private:
    static bool& in_use() {
        thread_local bool value = false;
        return value;
    }
    static void demand(bool condition) {
        if (condition) return;
        std::fputs("tiles used without their shapes, or shaped twice\n", stderr);
        std::abort();
    }
    // Subnormal numbers count as zero.
    static float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
    static void load(uint16_t (&tile)[16][32], const void* rows, int64_t stride_bytes) {
        demand(in_use());
        for (int m = 0; m < 16; m++) std::memcpy(tile[m], static_cast<const uint8_t*>(rows) + m * stride_bytes, 64);
    }

    // A product of two bf16 is exact in float, so that a fused and a separate addition round alike.
    uint16_t a_[2][16][32], b_[2][16][32];
    float c_[2][2][16][16] = {};
};

}  // namespace fb::FB_ISA
