// Compares every operation of every vector table that this CPU runs with the reference table, over awkward shapes. It
// is plain C++, so that it also runs without Python, for example under an emulator.
//
//   kernel_test           all tables;  kernel_test avx2    one of them
//
// It also fails if an operation of core/ops.def was not tested.
//
// Exits with 1 after a mismatch, and with 2 if nothing was tested.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/dispatch.h"
#include "core/rounded.h"
#include "core/thread_pool.h"

namespace fb {

namespace {

std::mt19937 generator(20240607);
int checks = 0, failures = 0;

float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(generator); }

// A view that owns its memory, with a gap between rows. New ones hold NaN, so that a cell that is not written is
// noticed. Gaps always hold NaN, so that reading one is noticed. The memory ends with the last row, so that the address
// sanitiser notices a read beyond it.
class Array {
public:
    Array(int64_t rows, int64_t cols, Dtype dtype = Dtype::f32)
        : bytes_(size_t(std::max<int64_t>(1, rows * (cols + kGap) - kGap)) * (dtype == Dtype::bf16 ? 2 : 4), 0xff) {
        view_ = {bytes_.data(), dtype, rows, cols, cols + kGap};
        each([](float&) {}, std::nanf(""));
    }
    static Array random(int64_t rows, int64_t cols, Dtype dtype = Dtype::f32, float low = -1, float high = 1) {
        Array a(rows, cols, dtype);
        a.each([&](float& x) { x = uniform(low, high); }, 0);
        return a;
    }
    Array(const Array& other) : bytes_(other.bytes_), view_(other.view_) { view_.data = bytes_.data(); }

    operator View() const { return view_; }
    float* floats() { return view_.row<float>(0); }
    float at(int64_t r, int64_t c) const {
        return view_.dtype == Dtype::f32 ? view_.row<float>(r)[c] : bf16_to_f32(view_.row<uint16_t>(r)[c]);
    }
    int64_t rows() const { return view_.rows; }
    int64_t cols() const { return view_.cols; }

private:
    static constexpr int64_t kGap = 3;
    template <class Fill>
    void each(const Fill& fill, float start) {
        for (int64_t r = 0; r < view_.rows; r++)
            for (int64_t c = 0; c < view_.cols; c++) {
                float x = start;
                fill(x);
                if (view_.dtype == Dtype::f32) view_.row<float>(r)[c] = x;
                else view_.row<uint16_t>(r)[c] = f32_to_bf16(x);
            }
    }
    std::vector<uint8_t> bytes_;
    View view_;
};

// Requires |ours - reference| <= tolerance * |reference| in norm. A NaN on either side fails.
void compare(const std::string& what, const Array& ours, const Array& reference, double tolerance) {
    double error = 0, size = 0;
    for (int64_t r = 0; r < ours.rows(); r++)
        for (int64_t c = 0; c < ours.cols(); c++) {
            const double x = ours.at(r, c), y = reference.at(r, c);
            error += (x - y) * (x - y);
            size += y * y;
        }
    checks++;
    if (error <= tolerance * tolerance * size && size > 0) return;
    failures++;
    std::printf("FAILED %s: error %.3g of %.3g allowed\n", what.c_str(), std::sqrt(error / size), tolerance);
}

// A table that counts the calls of each operation of another: `Counted<&Ops::operation>::calls`.
const Ops* counted = nullptr;
template <auto operation>
struct Counted;
template <class Result, class... Parameters, Result (*Ops::*operation)(Parameters...)>
struct Counted<operation> {
    inline static int calls = 0;
    static Result call(Parameters... parameters) {
        calls++;
        return (counted->*operation)(parameters...);
    }
};

const Ops& counting(const Ops& table) {
    static Ops ops;
    counted = &table;
    ops.name = table.name;
#define FB_OP(operation, result, parameters) ops.operation = Counted<&Ops::operation>::call;
#include "core/ops.def"
    return ops;
}

// Fails for each operation of the list that was not called since the last call of this function.
void expect_all_called(const Ops& table) {
    const auto expect = [&](const char* name, int& calls) {
        checks++;
        if (calls == 0) {
            failures++;
            std::printf("FAILED %s: %s was never checked\n", table.name, name);
        }
        calls = 0;
    };
#define FB_OP(operation, result, parameters) expect(#operation, Counted<&Ops::operation>::calls);
#include "core/ops.def"
}

// Runs `operation` with both tables on copies of the same outputs, and compares those.
void check(const std::string& what, const Ops& table, std::vector<Array> outputs, double tolerance,
           const std::function<void(const Ops&, std::vector<Array>&)>& operation) {
    std::vector<Array> expected = outputs;
    operation(counting(table), outputs);
    operation(*reference_ops(), expected);
    for (size_t i = 0; i < outputs.size(); i++)
        compare(std::string(table.name) + " " + what + " output " + std::to_string(i), outputs[i], expected[i],
                tolerance);
}

View row_of(View x, int64_t row) {
    x.data = static_cast<uint8_t*>(x.data) + row * x.ld * (x.dtype == Dtype::bf16 ? 2 : 4);
    x.rows = 1;
    return x;
}

// Requires the same bits, and no NaN.
void check_same(const std::string& table, const std::string& what, const Array& ours, const Array& expected) {
    int64_t differ = 0;
    for (int64_t r = 0; r < ours.rows(); r++)
        for (int64_t c = 0; c < ours.cols(); c++) {
            const float x = ours.at(r, c), y = expected.at(r, c);
            differ += std::isnan(x) || std::memcmp(&x, &y, 4) != 0;
        }
    checks++;
    if (!differ) return;
    failures++;
    std::printf("FAILED %s %s: %lld numbers differ\n", table.c_str(), what.c_str(), (long long)differ);
}

// Like `check`, but bit-identical.
void check_bits(const std::string& what, const Ops& table, std::vector<Array> outputs,
                const std::function<void(const Ops&, std::vector<Array>&)>& operation) {
    std::vector<Array> expected = outputs;
    operation(counting(table), outputs);
    operation(*reference_ops(), expected);
    for (size_t i = 0; i < outputs.size(); i++)
        check_same(table.name, what + " output " + std::to_string(i), outputs[i], expected[i]);
}

// Compares `operation`'s cost in both tables: the same arithmetic, and the scratch that the call really took.
template <class Operation>
void check_cost(const std::string& what, const Ops& table, const Operation& cost, const std::function<void()>& call) {
    scratch_peak();
    call();
    const auto bytes = int64_t(scratch_peak());
    const Cost ours = cost(counting(table)), expected = cost(*reference_ops());
    checks++;
    if (ours.flops == expected.flops && ours.scratch_bytes == bytes) return;
    failures++;
    std::printf("FAILED %s %s: %g flops of %g, %lld bytes of scratch said, %lld asked for\n", table.name, what.c_str(),
                ours.flops, expected.flops, (long long)ours.scratch_bytes, (long long)bytes);
}

struct Stored {
    std::vector<uint8_t> bytes;
    Matrix matrix;
};

// Random bytes are valid blocks, except for their numbers, which must be finite and give weights of order one.
Stored random_matrix(TensorType type, int64_t rows, int64_t cols) {
    const BlockShape block = block_shape(type);
    Stored stored;
    stored.matrix.type = type;
    stored.matrix.rows = rows;
    stored.matrix.cols = cols;
    stored.matrix.row_bytes = cols / block.weights * block.bytes;
    stored.bytes.resize(size_t(rows * stored.matrix.row_bytes));
    for (auto& byte : stored.bytes) byte = uint8_t(generator());
    stored.matrix.data = stored.bytes.data();
    with_type(type, [&](auto known) {
        using Format = plain::Format<known()>;
        const auto draw = [](Field field, uint8_t* start) {
            if (field.at < 0) return;
            float size;
            do {
                uint32_t bits = uint32_t(generator());
                if (field.kind == Number::f32) bits &= 0xfffff000;  // like converted halves: exact products
                std::memcpy(start + field.at, &bits, size_t(size_of(field.kind)));
                size = std::fabs(load_number(field.kind, start + field.at)) * float(Format::spread);
            } while (!(size >= 0.5f && size < 2));
        };
        for (size_t at = 0; at < stored.bytes.size(); at += size_t(block.bytes)) {
            draw(Format::scale, &stored.bytes[at]);
            draw(Format::offset, &stored.bytes[at]);
        }
    });
    return stored;
}

constexpr TensorType kTypes[] = {
#define FB_TYPE(T) TensorType::T,
    FB_FORMATS(FB_TYPE)
#undef FB_TYPE
};

// Code that uses the format of a type outside the list must not compile.
template <TensorType type, class = void>
constexpr bool kHasFormat = false;
template <TensorType type>
constexpr bool kHasFormat<type, std::void_t<plain::Format<type>>> = true;
static_assert(kHasFormat<TensorType::Q4_0> && !kHasFormat<TensorType(99)>);

// bf16 tables round the weights to bf16 (2^-9 each at worst, less in a sum); others only sum in another order.
double product_tolerance(Dtype dtype) { return dtype == Dtype::bf16 ? 4e-3 : 1e-5; }

void test_products(const Ops& table, Dtype dtype) {
    const double tolerance = product_tolerance(dtype);
    for (const TensorType type : kTypes)
        for (const int64_t tokens : {1, 2, 3, 5, 7, 33}) {
            const int64_t step = block_shape(type).weights, rows = tokens == 33 ? 131 : 37, rank = 5;
            const int64_t cols = step == 1 ? 101 : step == 32 ? 352 : 512;
            const Stored w = random_matrix(type, rows, cols);
            const std::string name = " type " + std::to_string(int(type)) + " T " + std::to_string(tokens);
            const Array x = Array::random(tokens, cols, dtype), h = Array::random(tokens, rank, dtype);
            const Array dy = Array::random(tokens, rows, dtype), bias = Array::random(1, rows);
            const Array b = Array::random(rank, rows), a = Array::random(rank, cols);
            for (const bool more : {false, true}) {
                const View none;
                const View hv = more ? View(h) : none, bv = more ? View(b) : none, av = more ? View(a) : none;
                check("linear" + name, table, {more ? Array::random(tokens, rows) : Array(tokens, rows)}, tolerance,
                      [&](const Ops& ops, auto& out) {
                          ops.linear(x, w.matrix, more ? View(bias).row<float>(0) : nullptr, hv, bv, out[0], more);
                      });
                check("linear_backward" + name, table, {more ? Array::random(tokens, cols) : Array(tokens, cols)},
                      tolerance,
                      [&](const Ops& ops, auto& out) { ops.linear_backward(dy, w.matrix, hv, av, out[0], more); });
                Array out(tokens, rows), dx(tokens, cols);
                check_cost(
                    "linear" + name, table,
                    [&](const Ops& ops) { return ops.linear_cost(tokens, cols, rows, hv.cols, dtype, type); },
                    [&] { table.linear(x, w.matrix, nullptr, hv, bv, out, false); });
                check_cost(
                    "linear_backward" + name, table,
                    [&](const Ops& ops) { return ops.linear_backward_cost(tokens, cols, rows, hv.cols, dtype); },
                    [&] { table.linear_backward(dy, w.matrix, hv, av, dx, false); });
            }
            Matrix slice = w.matrix;  // a rectangle of it
            slice.row0 = 3, slice.rows = rows - 4, slice.col0 = step, slice.cols = cols - step;
            const Array xs = Array::random(tokens, slice.cols, dtype), dys = Array::random(tokens, slice.rows, dtype);
            check("linear slice" + name, table, {Array(tokens, slice.rows)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.linear(xs, slice, nullptr, {}, {}, out[0], false); });
            check("linear_backward slice" + name, table, {Array(tokens, slice.cols)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.linear_backward(dys, slice, {}, {}, out[0], false); });
            const int32_t ids[] = {4, 0, int32_t(rows - 1), 4};
            check("gather_rows" + name, table, {Array(4, cols)}, 1e-6,
                  [&](const Ops& ops, auto& out) { ops.gather_rows(w.matrix, ids, out[0]); });
            check("dequantize" + name, table, {Array(rows, cols, dtype)}, dtype == Dtype::bf16 ? 1e-3 : 1e-6,
                  [&](const Ops& ops, auto& out) { ops.dequantize(w.matrix, out[0]); });
        }
}

// Large enough to be cut in every way: blocks of rows, rounds of panels, remaining panels cut along T, and partial
// ends.
void test_blocks(const Ops& table, Dtype dtype) {
    const int64_t tokens = 277, rows = 677, cols = 704;
    const Stored w = random_matrix(TensorType::Q4_0, rows, cols);
    const Array x = Array::random(tokens, cols, dtype), dy = Array::random(tokens, rows, dtype);
    check("linear in blocks", table, {Array(tokens, rows)}, product_tolerance(dtype),
          [&](const Ops& ops, auto& out) { ops.linear(x, w.matrix, nullptr, {}, {}, out[0], false); });
    check("linear_backward in blocks", table, {Array::random(tokens, cols)}, product_tolerance(dtype),
          [&](const Ops& ops, auto& out) { ops.linear_backward(dy, w.matrix, {}, {}, out[0], true); });
}

// LoRA's factor after the last stretch of the weight: none, short enough to share a panel with it, just too long for
// that, and longer than a panel. And the same without a weight.
void test_seams(const Ops& table, Dtype dtype) {
    const int64_t tokens = 9, width = 70;
    for (const int64_t reduction : {0, 40, 256, 300})
        for (const int64_t rank : {0, 1, 8, 32, 33, 64, 65, 270}) {
            const Stored w = random_matrix(TensorType::F32, width, reduction);
            const Stored v = random_matrix(TensorType::F32, reduction, width);
            const Array x = Array::random(tokens, reduction, dtype), h = Array::random(tokens, rank, dtype);
            const Array b = Array::random(rank, width), start = Array::random(tokens, width);
            const bool more = reduction == 0;
            const std::string name = " " + std::to_string(reduction) + " + " + std::to_string(rank);
            check("linear seam" + name, table, {more ? start : Array(tokens, width)}, product_tolerance(dtype),
                  [&](const Ops& ops, auto& out) { ops.linear(x, w.matrix, nullptr, h, b, out[0], more); });
            check("linear_backward seam" + name, table, {more ? start : Array(tokens, width)}, product_tolerance(dtype),
                  [&](const Ops& ops, auto& out) { ops.linear_backward(x, v.matrix, h, b, out[0], more); });
        }
}

// Numbers of very different sizes, with some zeros and a few that are far larger than the rest.
Array uneven(int64_t rows, int64_t cols) {
    Array a = Array::random(rows, cols);
    const View view = a;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float& x = view.row<float>(r)[c];
            x *= std::exp2(float(c / 32 % 7) * -3) * (generator() % 97 == 0 ? 1000.0f : 1.0f) *
                 float(generator() % 9 != 0);
            if (r % 5 == 3) x *= 1e-18f;
        }
    return a;
}

// The reference rounds x in the same way, so only sums may differ. Numbers of blocks fill a group, miss it by one, or
// exceed it; the last rows of x share a pass over the codes, or have it alone.
void test_rounded(const Ops& table, Dtype dtype) {
    for (const TensorType type : kTypes)
        for (const int64_t tokens : {1, 2, 4, 5, 16}) {
            checks += !counting(table).rounds(TensorType::F32, 1);
            if (!has_byte_codes(type)) continue;
            const int64_t step = block_shape(type).weights, rows = tokens == 1 ? 67 : 37, rank = 5;
            const int64_t blocks = tokens == 1 ? 35 : tokens == 2 ? 16 : 7;
            const int64_t cols = step == 32 ? blocks * 32 : 512 + 256 * (tokens % 2);
            const double tolerance = 1e-5;
            const Stored w = random_matrix(type, rows, cols);
            const std::string name =
                "linear_rounded type " + std::to_string(int(type)) + " T " + std::to_string(tokens);
            Array x = Array::random(tokens, cols, dtype), h = Array::random(tokens, rank, dtype);
            for (int64_t k = 0; k < cols && tokens > 1; k++) {  // rows and blocks of very different sizes, and zeros
                const float factor = k / 32 % 3 == 1 ? 0 : k / 32 % 3 == 2 ? 1e-3f : 50;
                if (dtype == Dtype::f32) View(x).row<float>(1)[k] *= factor;
            }
            const Array bias = Array::random(1, rows), b = Array::random(rank, rows);
            for (const bool more : {false, true}) {
                const View none;
                const View hv = more ? View(h) : none, bv = more ? View(b) : none;
                check(name, table, {more ? Array::random(tokens, rows) : Array(tokens, rows)}, tolerance,
                      [&](const Ops& ops, auto& out) {
                          ops.linear_rounded(x, w.matrix, more ? View(bias).row<float>(0) : nullptr, hv, bv, out[0],
                                             more);
                      });
                Array out(tokens, rows);
                check_cost(
                    name, table,
                    [&](const Ops& ops) { return ops.linear_rounded_cost(tokens, cols, rows, hv.cols, dtype, type); },
                    [&] { table.linear_rounded(x, w.matrix, nullptr, hv, bv, out, false); });
            }
            Array together(tokens, rows), single(tokens, rows);  // a row has the same bits beside others
            if (&table != reference_ops()) {
                table.linear_rounded(x, w.matrix, nullptr, h, b, together, false);
                for (int64_t t = 0; t < tokens; t++)
                    table.linear_rounded(row_of(x, t), w.matrix, nullptr, row_of(h, t), b, row_of(single, t), false);
                check_same(table.name, name + " beside others", together, single);
            }
            Matrix slice = w.matrix;  // a rectangle of it
            slice.row0 = 3, slice.rows = rows - 4, slice.col0 = step, slice.cols = cols - step;
            const Array xs = Array::random(tokens, slice.cols, dtype);
            check(name + " slice", table, {Array(tokens, slice.rows)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.linear_rounded(xs, slice, nullptr, {}, {}, out[0], false); });
            for (const float wrong : {std::nanf(""), INFINITY}) {  // nothing finite is made of it
                if (dtype == Dtype::f32) View(x).row<float>(0)[40] = wrong;
                else View(x).row<uint16_t>(0)[40] = f32_to_bf16(wrong);
                Array out(tokens, rows);
                table.linear_rounded(x, w.matrix, nullptr, {}, {}, out, false);
                int64_t finite = 0;
                for (int64_t n = 0; n < rows; n++) finite += std::isfinite(out.at(0, n));
                checks++;
                if (!finite) continue;
                failures++;
                std::printf("FAILED %s %s: %lld finite products\n", table.name, name.c_str(), (long long)finite);
            }
        }
}

void test_fixed(const Ops& table) {
    const auto both = [&](const std::string& name, int64_t tokens, const Stored& w, int64_t rank, bool more) {
        const int64_t rows = w.matrix.rows, cols = w.matrix.cols;
        const Array x = uneven(tokens, cols), dy = uneven(tokens, rows), h = uneven(tokens, rank);
        const Array dh = uneven(tokens, rank), b = uneven(rank, rows), a = uneven(rank, cols);
        const Array bias = Array::random(1, rows);
        const View none;
        const View hv = rank ? View(h) : none, bv = rank ? View(b) : none;
        const View dhv = rank ? View(dh) : none, av = rank ? View(a) : none;
        const auto forward = [&](const Ops& ops, auto& out) {
            ops.linear_fixed(x, w.matrix, more ? View(bias).row<float>(0) : nullptr, hv, bv, out[0], more);
        };
        std::vector<Array> y{more ? Array::random(tokens, rows) : Array(tokens, rows)};
        if (tokens > 4) check_bits("linear_fixed" + name, table, y, forward);
        else check("linear_fixed" + name, table, y, 1e-5, forward);
        check_bits("linear_backward_fixed" + name, table, {more ? Array::random(tokens, cols) : Array(tokens, cols)},
                   [&](const Ops& ops, auto& out) { ops.linear_backward_fixed(dy, w.matrix, dhv, av, out[0], more); });
        Array out(tokens, rows), dx(tokens, cols);
        check_cost(
            "linear_fixed" + name, table,
            [&](const Ops& ops) { return ops.linear_fixed_cost(tokens, cols, rows, hv.cols, w.matrix.type); },
            [&] { table.linear_fixed(x, w.matrix, nullptr, hv, bv, out, false); });
        check_cost(
            "linear_backward_fixed" + name, table,
            [&](const Ops& ops) { return ops.linear_backward_fixed_cost(tokens, cols, rows, dhv.cols); },
            [&] { table.linear_backward_fixed(dy, w.matrix, dhv, av, dx, false); });
    };
    for (const TensorType type : kTypes) {
        const int64_t step = block_shape(type).weights;
        const Stored w = random_matrix(type, 37, step == 1 ? 301 : step == 32 ? 352 : 512);
        for (const bool more : {false, true}) both(" type " + std::to_string(int(type)), 33, w, more ? 5 : 0, more);
    }
    for (const int64_t tokens : {1, 3, 7, 277})
        both(" T " + std::to_string(tokens), tokens, random_matrix(TensorType::Q4_0, 677, 704), 8, tokens != 7);
    for (const int64_t reduction : {1, 2, 31, 32, 33, 255, 256, 257, 543})
        for (const int64_t rank : {0, 1, 33, 64, 65, 300}) {
            const std::string name = " " + std::to_string(reduction) + " + " + std::to_string(rank);
            both(name, 9, random_matrix(TensorType::F32, 70, reduction), rank, false);
            both(name + " down", 9, random_matrix(TensorType::F32, reduction, 70), rank, true);
        }
}

// Rows and columns that point the same way reach the bound of each chunk's sum. The reference sums in 64 bits, and
// returns NaN for a sum that does not fit into 32.
void test_fixed_bound(const Ops& table) {
    const int64_t tokens = 13, width = 67, reduction = 544;
    for (const float live : {1.0f, 0.5f, 0.1f, 0.03f}) {
        Array x(tokens, reduction), v = Array(width, reduction);
        Stored w = random_matrix(TensorType::F32, width, reduction);
        for (int64_t k = 0; k < reduction; k++) {
            const float z = uniform(0, 1) < live ? uniform(-1, 1) : 1e-6f;
            for (int64_t t = 0; t < tokens; t++) View(x).row<float>(t)[k] = z * (t % 2 ? -1.0f : 3.0f);
            for (int64_t n = 0; n < width; n++)
                const_cast<float*>(reinterpret_cast<const float*>(w.matrix.row(n)))[k] = z;
        }
        check_bits("linear_fixed at the bound", table, {Array(tokens, width)},
                   [&](const Ops& ops, auto& out) { ops.linear_fixed(x, w.matrix, nullptr, {}, {}, out[0], false); });
    }
}

// 8-bit blocks, bit-identical: row ends one vector apart; zeros, tiny, huge and infinite numbers.
void test_encode(const Ops& table, Dtype dtype) {
    for (const int64_t cols : {1, 31, 32, 37, 300}) {
        const Array from = uneven(70, cols);
        Array x(70, cols, dtype);
        reference_ops()->cast(from, x);
        const float strange[] = {INFINITY, std::nanf(""), 1e7f, 65504 * 127.0f, 0, 1e-9f, -1e-6f};
        for (int64_t r = 0; r < 7; r++) {
            if (dtype == Dtype::f32) View(x).row<float>(r)[cols / 2] = strange[r];
            else View(x).row<uint16_t>(r)[cols / 2] = f32_to_bf16(strange[r]);
        }
        const int64_t row_bytes = (cols + 31) / 32 * 34 + 5;
        std::vector<uint8_t> ours(size_t(70 * row_bytes), 0xee), expected = ours;
        counting(table).encode(x, ours.data(), row_bytes);
        reference_ops()->encode(x, expected.data(), row_bytes);
        checks++;
        if (ours != expected) {
            failures++;
            std::printf("FAILED %s encode, %lld columns\n", table.name, (long long)cols);
        }
        Matrix codes;  // rows that end within a block, with a gap between them
        codes.data = ours.data() + 7 * row_bytes, codes.type = TensorType::Q8_0, codes.row_bytes = row_bytes;
        codes.rows = 63, codes.cols = cols;
        check("dequantize of codes", table, {Array(63, cols, dtype)}, dtype == Dtype::bf16 ? 1e-3 : 1e-6,
              [&](const Ops& ops, auto& out) { ops.dequantize(codes, out[0]); });
    }
}

void test_lora(const Ops& table, Dtype dtype) {
    for (const int64_t tokens : {1, 7, 33})
        for (const int64_t cols : {1, 63, 130})
            for (const int64_t rank : {1, 8, 11}) {
                const Array x = Array::random(tokens, cols, dtype), a = Array::random(rank, cols);
                const Array dh = Array::random(tokens, rank, dtype);
                check("lora_in", table, {Array::random(tokens, rank)}, 1e-4,
                      [&](const Ops& ops, auto& out) { ops.lora_in(x, a, 0.5f, out[0], true); });
                check("lora_gradient", table, {Array(rank, cols)}, 1e-4,
                      [&](const Ops& ops, auto& out) { ops.lora_gradient(dh, x, 0.5f, out[0], false); });
                Array h(tokens, rank), da(rank, cols);
                check_cost(
                    "lora_in", table, [&](const Ops& ops) { return ops.lora_in_cost(tokens, cols, rank); },
                    [&] { table.lora_in(x, a, 1, h, false); });
                check_cost(
                    "lora_gradient", table, [&](const Ops& ops) { return ops.lora_gradient_cost(tokens, cols, rank); },
                    [&] { table.lora_gradient(dh, x, 1, da, false); });
            }
}

float* floats(const View& row) { return row.row<float>(0); }

void test_slopes(const Ops& table, View z, View da, double tolerance) {
    const float bounds[] = {-3, 0.1f, 2}, slopes[] = {-0.1f, 0.2f, 0.7f, 1.1f};
    const int64_t row_bytes = (z.cols + 63) / 64 * 16;
    std::vector<uint8_t> ours(size_t(z.rows * row_bytes), 1), expected(size_t(z.rows * row_bytes), 2);
    counting(table).slope_codes(z, bounds, ours.data(), row_bytes);
    reference_ops()->slope_codes(z, bounds, expected.data(), row_bytes);
    if (ours != expected) {
        failures++;
        std::printf("FAILED %s slope_codes, %lld columns\n", table.name, (long long)z.cols);
    }
    check("slope_backward", table, {Array(z.rows, z.cols, z.dtype)}, tolerance,
          [&](const Ops& ops, auto& out) { ops.slope_backward(da, expected.data(), row_bytes, slopes, out[0]); });
}

void test_rows(const Ops& table, Dtype dtype) {
    const double tolerance = dtype == Dtype::bf16 ? 4e-3 : 1e-5;
    for (const int64_t cols : {1, 3, 16, 37, 130}) {
        const Array x = Array::random(7, cols), other = Array::random(7, cols, Dtype::f32, -4, 4);
        const Array up = Array::random(7, cols), weight = Array::random(1, cols, Dtype::f32, 0.5f, 2);
        check("rms_norm", table, {Array(7, cols, dtype)}, tolerance,
              [&](const Ops& ops, auto& out) { ops.rms_norm(x, weight, 1e-5f, out[0], false); });
        check("rms_norm accumulating", table, {other}, tolerance,
              [&](const Ops& ops, auto& out) { ops.rms_norm(x, weight, 1e-5f, out[0], true); });
        check("rms_norm_backward", table, {Array::random(7, cols)}, 1e-4,
              [&](const Ops& ops, auto& out) { ops.rms_norm_backward(other, x, weight, 1e-5f, out[0], true); });
        const Array heads = Array::random(7, 3 * cols, dtype), dheads = Array::random(7, 3 * cols);
        check("rms_norm of heads", table, {Array(7, 3 * cols, dtype)}, tolerance,
              [&](const Ops& ops, auto& out) { ops.rms_norm(heads, weight, 1e-5f, out[0], false); });
        if (cols > 1)  // for one column the gradient almost vanishes
            check("rms_norm_backward of heads", table, {dheads}, 1e-4, [&](const Ops& ops, auto& out) {
                ops.rms_norm_backward(out[0], heads, weight, 1e-5f, out[0], false);
            });
        const Array typed = Array::random(7, cols, dtype), shift = Array::random(1, cols);
        check("layer_norm", table, {Array(7, cols, dtype)}, tolerance,
              [&](const Ops& ops, auto& out) { ops.layer_norm(typed, weight, shift, 1e-5f, out[0]); });
        if (cols > 1) {  // a single column is its own mean: without bias, the result and the gradient are zero
            check("layer_norm without bias", table, {Array(7, cols, dtype)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.layer_norm(typed, weight, {}, 1e-5f, out[0]); });
            check("layer_norm_backward", table, {Array::random(7, cols)}, 1e-4, [&](const Ops& ops, auto& out) {
                ops.layer_norm_backward(other, typed, weight, 1e-3f, out[0], true);
            });
            check("layer_norm_backward in place", table, {other}, 1e-4, [&](const Ops& ops, auto& out) {
                ops.layer_norm_backward(out[0], typed, weight, 1e-3f, out[0], false);
            });
        }
        const Array gate = Array::random(7, cols, dtype, -4, 4), value = Array::random(7, cols, dtype);
        const Array gates = Array::random(7, cols, dtype, -20, 20), ups = Array::random(7, cols, dtype, -10, 10);
        for (const Activation form :
             {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu2, Activation::clipped_silu}) {
            const bool clipped = form == Activation::clipped_silu;
            const View g = clipped ? View(gates) : View(gate), u = clipped ? View(ups) : View(value);
            check("glu", table, {Array(7, cols, dtype)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.glu(g, u, form, out[0]); });
            check("glu_backward", table, {Array(7, cols, dtype), Array(7, cols, dtype), Array(7, cols, dtype)},
                  tolerance,
                  [&](const Ops& ops, auto& out) { ops.glu_backward(x, g, u, form, out[0], out[1], out[2]); });
            if (clipped) continue;
            check("glu alone", table, {Array(7, cols, dtype)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.glu(g, {}, form, out[0]); });
            check("glu_backward alone", table, {Array(7, cols, dtype), Array(7, cols, dtype)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.glu_backward(x, g, {}, form, out[0], {}, out[1]); });
        }
        test_slopes(table, gate, x, tolerance);
        const Array z = Array::random(7, cols, Dtype::f32, -4, 4);
        for (const Gate form : {Gate::silu, Gate::sigmoid}) {
            check("gate", table, {Array(7, cols, dtype)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.gate(z, value, form, out[0]); });
            check("gate alone", table, {Array(7, cols, dtype)}, tolerance,
                  [&](const Ops& ops, auto& out) { ops.gate(z, {}, form, out[0]); });
            check("gate_backward", table, {Array(7, cols), Array(7, cols)}, 1e-5,
                  [&](const Ops& ops, auto& out) { ops.gate_backward(x, z, value, form, out[0], out[1]); });
            check("gate_backward alone", table, {x}, 1e-5,
                  [&](const Ops& ops, auto& out) { ops.gate_backward(out[0], z, {}, form, out[0], {}); });
        }
        const Array bound = Array::random(1, cols, Dtype::f32, 0, 1), before = Array::random(1, cols);
        const Array inward = Array::random(7, cols, Dtype::f32, -4, 4);
        Array h(7, cols), last = before;
        reference_ops()->gated_recurrence(inward, other, floats(bound), floats(last), h);
        check("gated_recurrence", table, {before, Array(7, cols)}, 1e-5, [&](const Ops& ops, auto& out) {
            ops.gated_recurrence(inward, other, floats(bound), floats(out[0]), out[1]);
        });
        check("gated_recurrence_backward", table, {before, Array(7, cols, dtype), Array(7, cols, dtype)}, tolerance,
              [&](const Ops& ops, auto& out) {
                  ops.gated_recurrence_backward(x, inward, other, floats(bound), floats(before), h, floats(out[0]),
                                                out[1], out[2]);
              });
        check_bits("round_rows", table, {Array(7, cols, dtype)},
                   [&](const Ops& ops, auto& out) { ops.round_rows(other, out[0]); });
        check_bits("round_rows in place", table, {other},
                   [&](const Ops& ops, auto& out) { ops.round_rows(out[0], out[0]); });
        check("cast", table, {Array(7, cols, dtype)}, tolerance,
              [&](const Ops& ops, auto& out) { ops.cast(x, out[0]); });
        const Array factors = Array::random(1, cols), bias = Array::random(1, cols), many = Array::random(300, cols);
        check("scale_columns", table, {Array(7, cols, dtype)}, tolerance, [&](const Ops& ops, auto& out) {
            ops.scale_columns(gate, floats(factors), floats(bias), out[0], false);
        });
        check("scale_columns adding", table, {other}, tolerance,
              [&](const Ops& ops, auto& out) { ops.scale_columns(gate, nullptr, nullptr, out[0], true); });
        Array over = Array::random(1, cols, Dtype::f32, 0.5f, 2);
        over.floats()[cols / 2] = 0;
        check("column_dots", table, {Array::random(1, cols)}, 1e-5, [&](const Ops& ops, auto& out) {
            ops.column_dots(gate, value, floats(bias), floats(over), floats(out[0]));
        });
        check("column_dots of many rows", table, {Array::random(1, cols)}, 1e-4,
              [&](const Ops& ops, auto& out) { ops.column_dots(many, many, nullptr, nullptr, floats(out[0])); });
        const int32_t places[] = {6, 0, 3, 3, 7, -1, 2};  // 7 and -1 are no rows
        check("take_rows", table, {Array(4, cols, dtype)}, tolerance,
              [&](const Ops& ops, auto& out) { ops.take_rows(x, places, out[0]); });
        check("take_rows as stored", table, {Array(4, cols, dtype)}, 0,
              [&](const Ops& ops, auto& out) { ops.take_rows(value, places, out[0]); });
        check("add_rows", table, {other}, 1e-6, [&](const Ops& ops, auto& out) { ops.add_rows(up, places, out[0]); });
        for (const bool more : {false, true})
            check("row_dots", table, {Array::random(1, 7)}, 1e-5,
                  [&](const Ops& ops, auto& out) { ops.row_dots(x, value, floats(out[0]), more); });
        std::vector<uint32_t> states(size_t(x.rows()));
        for (size_t r = 0; r < states.size(); r++) states[r] = uint32_t(r) * 2654435761u;
        check("round_at_random", table, {Array(x.rows(), cols, Dtype::bf16)}, 0,
              [&](const Ops& ops, auto& out) { ops.round_at_random(x, states.data(), out[0]); });
        const Array choices = Array::random(1, 1 << 16);
        for (const int64_t first : {0, 7, 1024})
            check("add_drawn", table, {other}, 1e-6, [&](const Ops& ops, auto& out) {
                ops.add_drawn(states.data(), first, floats(choices), 0.5f, out[0]);
            });
        check("sum_squares", table, {Array(1, 1)}, 1e-5,
              [&](const Ops& ops, auto& out) { out[0].floats()[0] = float(ops.sum_squares(x)); });
        const Array v = Array::random(7, cols, Dtype::f32, 0, 1);
        check("adamw", table, {other, up, v}, 1e-5, [&](const Ops& ops, auto& out) {
            ops.adamw(x, {1e-2f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.5f, 0.25f, 2.0f}, out[0], out[1], out[2]);
        });
        check("sgd", table, {other}, 1e-5, [&](const Ops& ops, auto& out) { ops.sgd(x, 0.1f, 0.01f, 2.0f, out[0]); });
    }
    for (const auto& [d, rotated] : {std::pair<int64_t, int64_t>{2, 2}, {6, 6}, {64, 64}, {80, 80}, {64, 48}, {6, 2}})
        for (const bool interleaved : {false, true})
            for (const bool inverse : {false, true}) {
                const Array cos = Array::random(5, rotated / 2), sin = Array::random(5, rotated / 2),
                            x = Array::random(5, 3 * d, dtype);
                const RopeTable angles{cos, sin, d, interleaved};
                check("rope", table, {Array(5, 3 * d, dtype)}, tolerance,
                      [&](const Ops& ops, auto& out) { ops.rope(x, angles, inverse, out[0]); });
            }
}

void test_attention(const Ops& table, Dtype dtype) {
    const double tolerance = dtype == Dtype::bf16 ? 1e-2 : 1e-4;
    const int32_t cu[] = {0, 5, 6, 77, 130}, cu_few[] = {0, 1, 1, 3, 4}, cu_later[] = {0, 2, 2, 40, 60};
    for (const int32_t* cu_q : {cu, cu_few, cu_later})
        for (const int64_t d : {8, 20, 64})
            for (const int64_t window : {int64_t(0), int64_t(9), int64_t(200), kBothWays})
                for (const float softcap : {0.0f, 1.5f}) {
                    const int64_t queries = cu_q[4];
                    const bool more = window == 200;  // whether dk and dv are added to
                    const float sinks[] = {-1, 2, 0, 5};
                    const float* with_sinks = d == 20 ? sinks : nullptr;
                    const AttentionShape shape{4, 2, d, 0.3f, cu_q, cu, 4, window, softcap, nullptr, with_sinks};
                    const Array q = Array::random(queries, 4 * d, dtype, -3, 3), k = Array::random(130, 2 * d, dtype);
                    const Array v = Array::random(130, 2 * d, dtype), dout = Array::random(queries, 4 * d);
                    check("attention", table, {Array(queries, 4 * d, dtype), Array(4, queries)}, tolerance,
                          [&](const Ops& ops, auto& out) { ops.attention(q, k, v, shape, out[0], out[1], {}); });
                    check("attention alone", table, {Array(queries, 4 * d, dtype)}, tolerance,
                          [&](const Ops& ops, auto& out) { ops.attention(q, k, v, shape, out[0], {}, {}); });
                    Array out(queries, 4 * d, dtype), lse(4, queries), delta(4, queries);
                    reference_ops()->attention(q, k, v, shape, out, lse, {});
                    const Array start = more ? Array::random(130, 2 * d) : Array(130, 2 * d);
                    const auto backward = [&](const Ops& ops, auto& grads) {
                        ops.attention_backward(dout, q, k, v, out, lse, {}, shape, delta, grads[0], grads[1], grads[2],
                                               more);
                    };
                    check("attention_backward", table, {Array(queries, 4 * d), start, start}, tolerance, backward);

                    std::vector<Array> grads{Array(queries, 4 * d), start, start};
                    check_cost(
                        "attention_backward", table, [&](const Ops& ops) { return ops.attention_backward_cost(shape); },
                        [&] { backward(table, grads); });
                    for (const bool follows : {false, true})
                        check_cost(
                            "attention", table, [&](const Ops& ops) { return ops.attention_cost(shape, follows); },
                            [&] { table.attention(q, k, v, shape, out, follows ? View(lse) : View{}, {}); });
                }
}

// Random rows in a cache, with the last segment partly filled.
struct StoredCache {
    std::vector<uint8_t> bytes;
    KeyCache cache;

    StoredCache(const Ops& ops, TensorType type, int64_t kv_heads, int64_t d, const View& k, const View& v)
        : cache{nullptr, type, kv_heads, d, 0} {
        bytes.assign(size_t((k.rows + kSegment - 1) / kSegment * cache.segment_bytes()), 0xee);
        cache.data = bytes.data();
        const int64_t first = k.rows / 3;  // in two calls
        for (const auto& [start, stop] : {std::pair<int64_t, int64_t>{0, first}, {first, k.rows}}) {
            const auto part = [&, at = start, rows = stop - start](View x) {
                x.data = x.row<float>(at), x.rows = rows;
                return x;
            };
            ops.cache_rows(part(k), part(v), start, cache);
        }
    }
};

void test_cached_attention(const Ops& table, Dtype dtype) {
    const double tolerance = dtype == Dtype::bf16 ? 1e-2 : 1e-4;
    const float sinks[] = {-1, 2, 0, 5};
    for (const TensorType type : {TensorType::F32, TensorType::Q8_0, TensorType::Q4_0})
        for (const int64_t d : {20, 64, 96}) {
            if (d % block_shape(type).weights) continue;
            for (const int64_t keys : {1, 130, 400})
                for (const int64_t window : {0, 9, 300})
                    for (const int64_t queries : {1, 4, 37}) {
                        if (queries > keys) continue;
                        const float softcap = window == 9 ? 1.5f : 0;
                        const std::string name = "cached_attention type " + std::to_string(int(type)) + " d " +
                                                 std::to_string(d) + " keys " + std::to_string(keys);
                        const Array k = uneven(keys, 2 * d), v = Array::random(keys, 2 * d);
                        const Array q = Array::random(queries, 4 * d, Dtype::f32, -3, 3);
                        const StoredCache ours(counting(table), type, 2, d, k, v);
                        const StoredCache theirs(*reference_ops(), type, 2, d, k, v);
                        checks++;
                        if (ours.bytes != theirs.bytes) {
                            failures++;
                            std::printf("FAILED %s cache_rows of %s\n", table.name, name.c_str());
                        }
                        CacheShape whole{4,    0.1f, queries, keys, 0, keys, window, softcap, d == 20 ? sinks : nullptr,
                                         true, true};
                        const Array out(queries, 4 * d, dtype);
                        check(name, table, {out}, tolerance, [&](const Ops& ops, auto& outputs) {
                            ops.cached_attention(q, theirs.cache, whole, {}, outputs[0]);
                        });
                        Array once = out;
                        check_cost(
                            name, table, [&](const Ops& ops) { return ops.cached_attention_cost(whole, 2, d, type); },
                            [&] { table.cached_attention(q, theirs.cache, whole, {}, once); });
                        // Pieces of one and of two segments give the same bits as one call.
                        for (const Ops* ops : {&table, reference_ops()})
                            for (const int64_t step : {kSegment, 2 * kSegment}) {
                                Array state(queries, 4 * (d + 2)), pieces = out, expected = out;
                                ops->cached_attention(q, theirs.cache, whole, {}, expected);
                                for (int64_t from = 0; from < keys; from += step) {
                                    CacheShape part = whole;
                                    part.from = from, part.to = std::min(keys, from + step);
                                    part.begins = from == 0, part.ends = part.to == keys;
                                    KeyCache piece = theirs.cache;
                                    piece.first = from;
                                    piece.data += from / kSegment * piece.segment_bytes();
                                    ops->cached_attention(q, piece, part, state, part.ends ? View(pieces) : View{});
                                }
                                if (ops == reference_ops())
                                    compare(name + " in pieces", pieces, expected, dtype == Dtype::f32 ? 1e-5 : 1e-3);
                                else check_same(table.name, name + " in pieces", pieces, expected);
                            }
                    }
        }
    for (const int64_t size : {1, 2, 16, 64, 256})
        check("hadamard " + std::to_string(size), table, {Array::random(5, 3 * size)}, 1e-6,
              [&](const Ops& ops, auto& out) { ops.hadamard(out[0], size); });
}

void test_delta_rule(const Ops& table) {
    const int32_t cu[] = {0, 3, 3, 70, 103}, one[] = {0, 1}, long_one[] = {0, 75};
    for (const auto& [bounds, sequences] : {std::pair<const int32_t*, int64_t>{cu, 4}, {one, 1}, {long_one, 1}})
        for (const auto& [k_dim, v_dim] : {std::pair<int64_t, int64_t>{8, 16}, {21, 37}, {128, 128}})
            for (const bool tiled : {false, true}) {
                const int64_t rows = bounds[sequences], k_heads = 2, v_heads = 6, size = k_dim * v_dim;
                const DeltaShape shape{k_heads, v_heads, tiled, bounds, sequences};
                const float unit = 1.7f / std::sqrt(float(k_dim));  // keys have a length of about 1
                const Array q = Array::random(rows, k_heads * k_dim), v = Array::random(rows, v_heads * v_dim);
                const Array k = Array::random(rows, k_heads * k_dim, Dtype::f32, -unit, unit);
                const Array decay = Array::random(rows, v_heads, Dtype::f32, -1.5f, 0);
                const Array beta = Array::random(rows, v_heads, Dtype::f32, 0, 1);
                const Array before = Array::random(v_heads, size), dafter = Array::random(v_heads, size);
                const Array dy = Array::random(rows, v_heads * v_dim), like_q(rows, k_heads * k_dim);
                const Array like_v(rows, v_heads * v_dim), like_g(rows, v_heads);
                check("delta_rule", table, {like_v, before}, 1e-5, [&](const Ops& ops, auto& out) {
                    ops.delta_rule(q, k, v, decay, beta, shape, out[1], out[0], out[1]);
                });
                check("delta_rule, states only", table, {Array(v_heads, size)}, 1e-5,
                      [&](const Ops& ops, auto& out) { ops.delta_rule(q, k, v, decay, beta, shape, {}, {}, out[0]); });
                check("delta_rule_backward", table, {like_q, like_q, like_v, like_g, like_g, dafter}, 1e-5,
                      [&](const Ops& ops, auto& out) {
                          ops.delta_rule_backward(dy, q, k, v, decay, beta, shape, before, out[5], out[0], out[1],
                                                  out[2], out[3], out[4], out[5]);
                      });
                std::vector<Array> out{like_q, like_q, like_v, like_g, like_g, dafter};
                check_cost(
                    "delta_rule", table, [&](const Ops& ops) { return ops.delta_rule_cost(shape, k_dim, v_dim); },
                    [&] { table.delta_rule(q, k, v, decay, beta, shape, before, out[2], {}); });
                check_cost(
                    "delta_rule_backward", table,
                    [&](const Ops& ops) { return ops.delta_rule_backward_cost(shape, k_dim, v_dim); },
                    [&] {
                        table.delta_rule_backward(dy, q, k, v, decay, beta, shape, before, {}, out[0], out[1], out[2],
                                                  out[3], out[4], {});
                    });
            }
}

void test_loss(const Ops& table, Dtype dtype) {
    const int64_t n = 5, d = 19, tiles[] = {0, 64, 101};
    const Array logits = Array::random(n, 101, Dtype::f32, -6, 6), rows = Array::random(n, d);
    const int32_t targets[] = {0, 63, 64, 100, 17};
    for (const float softcap : {0.0f, 4.0f})
        check("cross_entropy", table, {Array::random(n, d), Array(1, n)}, dtype == Dtype::bf16 ? 4e-3 : 1e-5,
              [&](const Ops& ops, auto& out) {
                  std::vector<float> reference(n, -INFINITY), sum(n, 0), target(n, 0);
                  for (int i = 0; i < 2; i++) {
                      View tile = logits;
                      tile.data = tile.row<float>(0) + tiles[i];
                      tile.cols = tiles[i + 1] - tiles[i];
                      Array p(n, tile.cols, dtype);
                      ops.cross_entropy_tile(tile, targets, tiles[i], softcap, reference.data(), sum.data(),
                                             target.data(), p, out[0]);
                  }
                  ops.cross_entropy_finish(reference.data(), sum.data(), target.data(), rows, 0.5f, softcap, out[0],
                                           out[1].floats(), n);
              });
}

int run(const char* only) {
    set_threads(2);
    int tables = 0;
    for (const Ops* table : available_ops()) {
        if (table == reference_ops() || (only && std::string(only) != table->name)) continue;
        const int before = checks;
        for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
            test_products(*table, dtype);
            test_blocks(*table, dtype);
            test_seams(*table, dtype);
            if (dtype == Dtype::f32) {
                test_fixed(*table);
                test_fixed_bound(*table);
                test_delta_rule(*table);
            }
            test_rounded(*table, dtype);
            test_encode(*table, dtype);
            test_lora(*table, dtype);
            test_rows(*table, dtype);
            test_attention(*table, dtype);
            test_cached_attention(*table, dtype);
            test_loss(*table, dtype);
        }
        expect_all_called(*table);
        std::printf("%s: %d checks\n", table->name, checks - before);
        tables++;
    }
    if (failures) std::printf("%d of %d checks failed\n", failures, checks);
    return failures ? 1 : tables ? 0 : 2;
}

}  // namespace
}  // namespace fb

int main(int count, char** arguments) { return fb::run(count > 1 ? arguments[1] : nullptr); }
