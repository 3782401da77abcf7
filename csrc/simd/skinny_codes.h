// Stored rows times a few rows of x in bf16, on sets with bf16 dot products. A block's integer codes are exact in bf16:
// they are multiplied as they are, and its scale meets the sum of the products, once. Nothing is rounded but sums.
// Minima meet the sums of x over their blocks, which are the same for every row.
#pragma once
#include "simd/unpack_bf16.h"

namespace fb::FB_ISA {

#if defined(__AVX512BF16__)

// The types that gain: codes of eight bits cost as much to convert as to multiply, and the others hold no codes.
constexpr bool has_codes(TensorType type) {
    return type != TensorType::F32 && type != TensorType::F16 && type != TensorType::BF16 && type != TensorType::Q8_0;
}

template <TensorType type, int T>
class CodeRows {
public:
    static int64_t scratch_bytes(int64_t cols) { return T * (padded(cols) * 2 + padded(cols) / kLanes * 4); }

    CodeRows(const View& x, void* scratch)
        : cols_(x.cols),
          width_(padded(x.cols)),
          x_(static_cast<uint16_t*>(scratch)),
          sums_(reinterpret_cast<float*>(x_ + T * width_)) {
        for (int t = 0; t < T; t++) {
            uint16_t* row = x_ + t * width_;
            std::copy_n(x.row<uint16_t>(t), cols_, row);
            std::fill(row + cols_, row + width_, uint16_t(0));
            if constexpr (kShifted) sum_blocks(t);
            if constexpr (!kLarge)  // two blocks are multiplied at once: both first halves, then both second halves
                for (uint16_t* pair = row; pair < row + width_; pair += 2 * kRun)
                    std::swap_ranges(pair + kRun / 2, pair + kRun, pair + kRun);
        }
    }

    // sums[t] = the products of one stored row with x_t, spread over lanes.
    FB_INLINE void dot(const uint8_t* row, Vec (&sums)[T]) const {
        Parts parts = {};
        const int64_t blocks = cols_ / kBlock.weights;
        if constexpr (kLarge) {
            for (int64_t i = 0; i < blocks; i++) add_large(row + i * kBlock.bytes, i, parts);
        } else {
            int64_t first = 0;
            for (; first + kGroup <= blocks; first += kGroup) add_group(row, first, kGroup, parts);
            if (first < blocks) add_group(row, first, int(blocks - first), parts);
        }
        for (int t = 0; t < T; t++) sums[t] = (parts[t][0] + parts[t][1]) + (parts[t][2] + parts[t][3]);
    }

private:
    static constexpr int kChains = 4;  // of additions, side by side: they hide each other's latency
    using Parts = Vec[T][kChains];
    using IHalves = short __attribute__((vector_size(64)));

    static constexpr BlockShape kBlock = block_shape(type);
    static constexpr int kGroup = 16;  // blocks of 32 whose scales are read together, one a lane
    static constexpr bool kFive = type == TensorType::Q5_0 || type == TensorType::Q5_1 || type == TensorType::Q5_K;
    static constexpr bool kShifted =
        type == TensorType::Q4_1 || type == TensorType::Q5_1 || type == TensorType::Q4_K || type == TensorType::Q5_K;
    static constexpr bool kLarge = kBlock.weights == 256;

    static int64_t padded(int64_t cols) { return round_up(cols, kGroup * kRun); }

    // The sums of x_t that belong to group or large block i. Lane j of a group is block j's; a large block has its
    // scales in lanes 0 to 7, where there is nothing to sum, and its minima, to be subtracted, in lanes 8 to 15.
    FB_INLINE float* sums_of(int t, int64_t i) const { return sums_ + t * width_ / kLanes + i * kLanes; }

    void sum_blocks(int t) {
        std::fill_n(sums_of(t, 0), width_ / kLanes, 0.0f);
        for (int64_t run = 0; run < width_ / kRun; run++) {
            const uint16_t* x = x_ + t * width_ + run * kRun;
            const float total = sum(load(x) + load(x + kLanes));
            if constexpr (kLarge) sums_of(t, run / 8)[8 + run % 8] = -total;
            else sums_of(t, run / kGroup)[run % kGroup] = total;
        }
    }

    void add_sums(__m512 offsets, int64_t i, Parts& parts) const {
        for (int t = 0; t < T; t++) parts[t][0] += (Vec)offsets * load(sums_of(t, i));
    }

    // sums += scales * (codes x), the codes in one or two vectors that belong to x from run `run` on.
    template <int n>
    FB_INLINE void add(const __m512i (&codes)[n], int64_t run, __m512 scales, int chain, Parts& parts) const {
        for (int t = 0; t < T; t++) {
            __m512 products = _mm512_setzero_ps();
            for (int i = 0; i < n; i++) {
                const __m512i x = _mm512_loadu_si512(x_ + t * width_ + (run + i) * kRun);
                products = _mm512_dpbf16_ps(products, (__m512bh)codes[i], (__m512bh)x);
            }
            parts[t][chain] += (Vec)(scales * products);
        }
    }

    // Numbers first, ... first + n - 1, each in as many lanes.
    template <int n>
    static FB_INLINE __m512 spread(__m512 numbers, int first) {
        IVec lanes;
        for (int i = 0; i < kLanes; i++) lanes[i] = i * n / kLanes;
        return _mm512_permutexvar_ps((__m512i)(lanes + first), numbers);
    }

    // Codes as bf16, from words whose low four bits are theirs, and the fifth bits.
    static FB_INLINE __m512i code(__m512i words, __mmask32 fifth, float first) {
        if constexpr (!kFive) return (__m512i)look_up(words, codes(first));
        else return (__m512i)look_up(words, fifth, codes(first), codes(first + 16));
    }

    // The first four bytes of each block of a group: a scale and, of the types with minima, a minimum.
    static FB_INLINE __m512i heads_of(const uint8_t* block, int count) {
        if constexpr (kFive) {
            uint32_t heads[kGroup] = {};
            for (int i = 0; i < count; i++) heads[i] = load_u32(block + i * kBlock.bytes);
            return _mm512_loadu_si512(heads);
        }
        // Blocks of four bits are so short that 64 bytes hold four heads.
        constexpr int step = kBlock.bytes / 2;
        IHalves from;
        for (int i = 0; i < 2 * kGroup; i++) from[i] = short(i / 2 % 4 * step + i % 2 + i / 8 * 32);
        const auto four = [&](int first) {
            const int bytes = std::clamp((count - first) * kBlock.bytes, 0, 64);
            return _mm512_maskz_loadu_epi8(bytes ? ~uint64_t(0) >> (64 - bytes) : 0, block + first * kBlock.bytes);
        };
        const auto eight = [&](int first) {
            return _mm512_permutex2var_epi16(four(first), (__m512i)from, four(first + 4));
        };
        return _mm512_inserti64x4(eight(0), _mm512_castsi512_si256(eight(8)), 1);
    }

    // Blocks [first, first + count) of a row.
    FB_INLINE void add_group(const uint8_t* row, int64_t first, int count, Parts& parts) const {
        const uint8_t* block = row + first * kBlock.bytes;
        const __m512i head = heads_of(block, count);
        const __m512 scales = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(head));
        if constexpr (kShifted)
            add_sums(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(head, 16))), first / kGroup, parts);
        constexpr int nibbles = kBlock.bytes - 16;
        constexpr float lowest = kShifted ? 0 : kFive ? -16 : -8;
        for (int turn = 0; turn < count; turn += 2 * kChains)
#pragma GCC unroll 4
            for (int chain = 0; chain < kChains; chain++) {
                const int i = turn + 2 * chain;
                if (i >= count) break;
                const uint8_t* one = block + i * kBlock.bytes;
                const uint8_t* two = i + 1 < count ? one + kBlock.bytes : one;  // times zeros if there is none
                const __m256i bytes =
                    _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)(one + nibbles))),
                                            _mm_loadu_si128((const __m128i*)(two + nibbles)), 1);
                const __m512i words = _mm512_cvtepu8_epi16(bytes);
                uint32_t a = 0, b = 0;
                if constexpr (kFive) a = load_u32(one + nibbles - 4), b = load_u32(two + nibbles - 4);
                const __m512i both[2] = {code(words, (a & 0xffff) | b << 16, lowest),
                                         code(_mm512_srli_epi16(words, 4), a >> 16 | (b & 0xffff0000), lowest)};
                add(both, first + i, spread<2>(scales, i), chain, parts);
            }
    }

    // One block of 256.
    FB_INLINE void add_large(const uint8_t* block, int64_t index, Parts& parts) const {
        if constexpr (type == TensorType::Q6_K) {
            const __m512 scales = bytes_to_float(_mm_loadu_si128((const __m128i*)(block + 192))) *
                                  _mm512_set1_ps(half_to_float(block + 208));
            const __m512i low_levels = (__m512i)narrow(codes(-32), codes(-16));
            const __m512i high_levels = (__m512i)narrow(codes(0), codes(16));
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                const auto words = [](const uint8_t* bytes) {
                    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)bytes));
                };
                const __m512i low[2] = {words(block + half * 64), words(block + half * 64 + 32)};
                const __m512i high = words(block + 128 + half * 32);
#pragma GCC unroll 4
                for (int quarter = 0; quarter < 4; quarter++) {
                    const __m512i four = _mm512_srli_epi16(low[quarter % 2], quarter / 2 * 4);
                    const __m512i two = quarter < 2 ? _mm512_slli_epi16(high, 4 - 2 * quarter)
                                                    : _mm512_srli_epi16(high, 2 * quarter - 4);
                    // four's bits where the mask is set, two's elsewhere; the look-up reads six of them
                    const __m512i six = _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), four, two, 0xca);
                    const __m512i picked[1] = {_mm512_permutex2var_epi16(low_levels, six, high_levels)};
                    const int run = half * 4 + quarter;
                    add(picked, index * 8 + run, spread<2>(scales, 2 * run), quarter, parts);
                }
            }
        } else {  // Q4_K, Q5_K
            // Eight scales and eight minima of six bits: four of each in the first eight bytes, the low bits of the
            // other four in the last four bytes, their high bits in what the first eight leave.
            const uint32_t a = load_u32(block + 4), b = load_u32(block + 8), c = load_u32(block + 12);
            const __m128i sixes =
                _mm_setr_epi32(int(a & 0x3f3f3f3f), int((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)), int(b & 0x3f3f3f3f),
                               int((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)));
            const __m512 heads = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(int(load_u32(block)))));
            const __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixes)) * spread<2>(heads, 0);
            add_sums(scales, index, parts);
            const __m256i fifths = _mm256_loadu_si256((const __m256i*)(block + 16));
#pragma GCC unroll 4
            for (int sub = 0; sub < 8; sub += 2) {
                const __m256i bytes = _mm256_loadu_si256((const __m256i*)(block + kBlock.bytes - 128 + sub / 2 * 32));
                const __m512i words = _mm512_cvtepu8_epi16(bytes);
                const auto fifth = [&](int which) {
                    return kFive ? _mm256_test_epi8_mask(fifths, _mm256_set1_epi8(char(1 << which))) : __mmask32(0);
                };
                const __m512i even[1] = {code(words, fifth(sub), 0)};
                const __m512i odd[1] = {code(_mm512_srli_epi16(words, 4), fifth(sub + 1), 0)};
                add(even, index * 8 + sub, spread<1>(scales, sub), sub % kChains, parts);
                add(odd, index * 8 + sub + 1, spread<1>(scales, sub + 1), (sub + 1) % kChains, parts);
            }
        }
    }

    int64_t cols_, width_;
    uint16_t* x_;
    float* sums_;
};

#endif

}  // namespace fb::FB_ISA
