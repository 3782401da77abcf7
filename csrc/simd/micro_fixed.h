// The micro-kernel of fixed-point products, and the conversion of rows and panels. core/fixed.h defines the numbers;
// simd/micro.h documents the members.
#pragma once
#include "core/fixed.h"
#include "simd/pack.h"

namespace fb::FB_ISA {

// Keeps a value in a register. The compiler then neither fuses the product that made it with a following addition, nor
// loads it again.
template <class V>
FB_INLINE V settled(V v) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(v));
#elif defined(__x86_64__)
    __asm__("" : "+x"(v));
#elif defined(__aarch64__)
    __asm__("" : "+w"(v));
#else
    __asm__("" : "+m"(v));
#endif
    return v;
}

// Eight floats on every set, because the sums of a chunk have eight parts.
using Eight = float __attribute__((vector_size(32)));
using EightBits = int32_t __attribute__((vector_size(32)));

// The maximum of unsigned floats, compared by their bits; NaN is the largest.
template <class Bits, class V>
FB_INLINE V larger(V a, V b) {
    return (V)((Bits)a > (Bits)b ? (Bits)a : (Bits)b);
}
template <class Bits, class V>
FB_INLINE V magnitude(V v) {
    return larger<Bits>((V)((Bits)v & int32_t(kFixedBits)), kFixedFloor - V{});
}

template <int i0, int i1, int i2, int i3, int i4, int i5, int i6, int i7>
FB_INLINE Eight pick_eight(Eight a, Eight b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, i0, i1, i2, i3, i4, i5, i6, i7);
#else
    return __builtin_shuffle(a, b, EightBits{i0, i1, i2, i3, i4, i5, i6, i7});
#endif
}
// The sums of eight chunks, each in eight parts.
FB_INLINE Eight chunk_sums(const Eight (&v)[8]) {
    Eight four[4], two[2];
    for (int i = 0; i < 4; i++)
        four[i] = pick_eight<0, 1, 2, 3, 8, 9, 10, 11>(v[2 * i], v[2 * i + 1]) +
                  pick_eight<4, 5, 6, 7, 12, 13, 14, 15>(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 2; i++)
        two[i] = pick_eight<0, 1, 4, 5, 8, 9, 12, 13>(four[2 * i], four[2 * i + 1]) +
                 pick_eight<2, 3, 6, 7, 10, 11, 14, 15>(four[2 * i], four[2 * i + 1]);
    return pick_eight<0, 2, 4, 6, 8, 10, 12, 14>(two[0], two[1]) +
           pick_eight<1, 3, 5, 7, 9, 11, 13, 15>(two[0], two[1]);
}

// The largest of eight, in all lanes.
FB_INLINE Eight largest(Eight v) {
    v = larger<EightBits>(v, pick_eight<4, 5, 6, 7, 0, 1, 2, 3>(v, v));
    v = larger<EightBits>(v, pick_eight<2, 3, 0, 1, 6, 7, 4, 5>(v, v));
    return larger<EightBits>(v, pick_eight<1, 0, 3, 2, 5, 4, 7, 6>(v, v));
}

// Stores two vectors of small integers, one after the other, as int16.
FB_INLINE void store_narrow(IVec a, IVec b, int16_t* out) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i blocks = _mm256_packs_epi32((__m256i)a, (__m256i)b);  // blocks of 64 bits, in the order 0 2 1 3
    const __m256i narrow = _mm256_permute4x64_epi64(blocks, 0xd8);
    __builtin_memcpy(out, &narrow, sizeof narrow);
#else
    using Narrow = int16_t __attribute__((vector_size(2 * kLanes)));
    const Narrow first = __builtin_convertvector(a, Narrow), second = __builtin_convertvector(b, Narrow);
    __builtin_memcpy(out, &first, sizeof first);
    __builtin_memcpy(out + kLanes, &second, sizeof second);
#endif
}

// acc += the products of pairs of int16.
FB_INLINE IVec add_pairs(IVec acc, IVec a, IVec b) {
#if defined(__AVX512BF16__)
    // AVX512-VNNI, without a compiler flag: every CPU with AVX512-BF16 has it, and core/dispatch.cpp checks.
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
#elif defined(__AVX512F__)
    return acc + (IVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return acc + (IVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return acc + (IVec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    const IVec low = (a << 16 >> 16) * (b << 16 >> 16);
    return acc + low + (a >> 16) * (b >> 16);
#endif
}

// A row of the tile: sums[j] += pair * row[j].
FB_INLINE void add_row(IVec (&sums)[2], IVec pair, const IVec (&row)[2]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    // In these instructions the tile fills the sixteen registers, and nothing is spilled to memory.
    IVec first = sums[0], second = sums[1], product;
    __asm__(
        "vpmaddwd %4, %2, %3\n\t"
        "vpmaddwd %5, %2, %2\n\t"
        "vpaddd %3, %0, %0\n\t"
        "vpaddd %2, %1, %1"
        : "+x"(first), "+x"(second), "+x"(pair), "=&x"(product)
        : "x"(row[0]), "x"(row[1]));
    sums[0] = first;
    sums[1] = second;
#else
    for (int j = 0; j < 2; j++) sums[j] = add_pairs(sums[j], pair, row[j]);
#endif
}

struct FixedTile {
    using Operand = int16_t;
    using Element = uint32_t;
    // Two vectors wide: with 32 registers the sums of a chunk and of a group fit, and a strip leaves room in the
    // first-level cache.
    static constexpr int N = 2;
    static constexpr int rows = kTileRows, row_step = 1, cols = N * kLanes;
    static constexpr int header = 1, steps = 2, depth_step = 2, depth = kFixedGroup;  // header: scales

    // A row of x in fixed point: its scale and its chunks' shares, each in the place of two numbers, then the numbers.
    static constexpr int chunks = depth / kFixedChunk, kHead = 2 + 2 * chunks, kRow = kHead + depth;

    template <int height>
    FB_INLINE static Rows<int16_t> operand(const View& x, int64_t row, int64_t, int64_t, int64_t, int16_t*) {
        return {x.row<int16_t>(row), x.ld};
    }

    static constexpr int64_t kRowsAhead = 3;

    // Writes rows [t0, t1) of x, steps [first, first + count), into `out`.
    static View prepare(const View& x, int64_t t0, int64_t t1, int64_t first, int64_t count, int16_t* out) {
        const int64_t padded = round_up(count, kFixedChunk);
        alignas(64) float whole[depth] = {};
        for (int64_t t = t0; t < t1; t++) {
            const float* row = x.row<float>(t) + first;
            if (t + kRowsAhead < t1)  // prefetch, because the rows are too short for the hardware prefetcher
                for (int64_t p = 0; p < count; p += 16) __builtin_prefetch(row + kRowsAhead * x.ld + p);
            if (count < padded) row = static_cast<const float*>(std::memcpy(whole, row, size_t(count) * 4));
            Eight parts[chunks];
            for (int c = 0; c < chunks; c++) {
                Eight sum = {};
                if (c * kFixedChunk < padded)
                    unrolled<kFixedChunk / 8>([&](auto i) {
                        const Eight size = magnitude<EightBits>(load_raw<Eight>(row + c * kFixedChunk + i * 8));
                        sum += size * size;
                    });
                parts[c] = sum;
            }
            const Eight squares = chunk_sums(parts), most = largest(squares);
            // The powers of two of the chunks: half the exponents of the ratios.
            EightBits power = (((EightBits)(most / squares) >> 23) - 127) >> 1;
            power = power < kFixedShift ? power : kFixedShift + EightBits{};
            const float inverse = kFixedRowNorm / std::sqrt(most[0]), scale = 1 / inverse;
            const Eight shares = (Eight)((127 - power) << 23);
            alignas(32) float factors[chunks];
            const Eight all = inverse * (Eight)((127 + power) << 23);
            __builtin_memcpy(factors, &all, sizeof factors);
            int16_t* to = out + (t - t0) * kRow;
            __builtin_memcpy(to, &scale, 4);
            __builtin_memcpy(to + 2, &shares, sizeof shares);
            for (int64_t p = 0; p < padded; p += kFixedChunk) {
                const Vec factor = splat(factors[p / kFixedChunk]);
                unrolled<kFixedChunk / (2 * kLanes)>([&](auto i) {
                    const float* from = row + p + i * 2 * kLanes;
                    store_narrow(nearest(load(from) * factor), nearest(load(from + kLanes) * factor),
                                 to + kHead + p + i * 2 * kLanes);
                });
            }
        }
        return {out, Dtype::bf16, t1 - t0, kRow, kRow};  // two bytes each
    }

    // Converts a panel of float32 weights, as a tile of floats reads it, to fixed point.
    static void quantise(const float* source, int64_t depth, uint32_t* panel) {
        for (int64_t strip = 0; strip < kPanelCols; strip += cols) {
            const float* strip_source = source + strip / kTileCols * depth * kTileCols + strip % kTileCols;
            for (int64_t j = 0; j < cols; j += kLanes) {
                const auto weights = [&](int64_t p) {
                    return p < depth ? load(strip_source + p * kTileCols + j) : Vec{};
                };
                Vec most = {}, part = {};  // the largest sum of a chunk, and of one of its parts
                for (int64_t p = 0; p < depth; p += kFixedChunk) {
                    Vec parts[8] = {};
                    for (int i = 0; i < kFixedChunk; i += 8)
                        unrolled<8>([&](auto k) {
                            const Vec size = magnitude<IVec>(weights(p + i + k));
                            parts[k] += size * size;
                        });
                    unrolled<8>([&](auto k) { part = larger<IVec>(parts[k], part); });
                    unrolled<4>([&](auto k) { parts[k] += parts[k + 4]; });
                    most = larger<IVec>((parts[0] + parts[2]) + (parts[1] + parts[3]), most);
                }
                const Vec by_norm = kFixedColumnNorm / square_root(most), by_peak = kFixedPeak / square_root(part);
                const Vec inverse = by_peak < by_norm ? by_peak : by_norm;  // NaN if by_norm is
                uint32_t* out = panel + j;
                store(reinterpret_cast<float*>(out), 1.0f / inverse);
                out += cols;
                for (int64_t p = 0; p < depth; p += 2, out += cols) {
                    const IVec even = nearest(weights(p) * inverse), odd = nearest(weights(p + 1) * inverse);
                    const IVec pair = (even & 0xffff) | odd << 16;
                    __builtin_memcpy(out, &pair, sizeof pair);
                }
            }
            panel += (header + round_up(depth, depth_step) / steps) * cols;
        }
    }

    template <int height>
    class Sums {
    public:
        FB_INLINE void add(int64_t count, Rows<int16_t> a, const uint32_t* strip) {
            Vec total[height][N] = {};
            const uint32_t* b = strip + cols;
            for (int64_t first = 0; first < count; first += kFixedChunk) {
                IVec sums[height][N];
                unrolled<height>([&](auto i) { unrolled<N>([&](auto j) { sums[i][j] = IVec{}; }); });
                const int16_t* pairs = a.data + kHead + first;
                for (const int64_t end = std::min<int64_t>(count, first + kFixedChunk); pairs < a.data + kHead + end;
                     pairs += 2, b += cols) {
                    IVec row[N];
                    unrolled<N>([&](auto j) { row[j] = settled(load_raw<IVec>(b + j * kLanes)); });
                    unrolled<height>([&](auto i) {
                        int32_t pair;
                        __builtin_memcpy(&pair, pairs + i * a.stride, 4);
                        add_row(sums[i], pair - IVec{}, row);
                    });
                }
                unrolled<height>([&](auto i) {
                    float share;  // a power of two: its products are exact, fused or not
                    __builtin_memcpy(&share, a.data + i * a.stride + 2 + first / kFixedChunk * 2, 4);
                    unrolled<N>([&](auto j) { total[i][j] += __builtin_convertvector(sums[i][j], Vec) * share; });
                });
            }
            for (int i = 0; i < height; i++) {
                float scale;
                __builtin_memcpy(&scale, a.data + i * a.stride, 4);
                for (int j = 0; j < N; j++)
                    value_[i][j] += settled(total[i][j] * (load_raw<Vec>(strip + j * kLanes) * scale));
            }
        }

        FB_INLINE void write(float* c, int64_t ldc, bool accumulate) const {
            for (int i = 0; i < height; i++)
                for (int j = 0; j < N; j++) {
                    float* cell = c + i * ldc + j * kLanes;
                    store(cell, accumulate ? load(cell) + value_[i][j] : value_[i][j]);
                }
        }

    private:
        Vec value_[height][N] = {};
    };
};

}  // namespace fb::FB_ISA
