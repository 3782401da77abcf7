#include "program/program.h"

#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "host/pager.h"

namespace fb {

namespace {

// Zeros from a cache line on, whose pages stay untouched until they are written.
std::shared_ptr<uint8_t> allocated(int64_t bytes) {
    constexpr size_t kLine = 64;
    const std::shared_ptr<void> memory(std::calloc(size_t(bytes) + kLine, 1), std::free);
    if (!memory) throw std::bad_alloc();
    auto* begin = static_cast<uint8_t*>(memory.get());
    const size_t at = reinterpret_cast<uintptr_t>(begin) % kLine;
    return {memory, begin + (at ? kLine - at : 0)};
}

}  // namespace

// One call: its arguments for a batch, by their place.
struct Operation {
    using Kind = Argument::Kind;

    Program& program;
    const Batch& batch;
    const std::vector<int32_t>&rows, &targets, &others;
    double scale;
    double& loss;
    const uint32_t* words = nullptr;

    const Argument& argument(int at) const { return program.recording_.arguments[words[at]]; }

    const Argument& expect(int at, Kind kind) const {
        if (argument(at).kind != kind) refuse("argument " + std::to_string(at + 1) + " is of another kind");
        return argument(at);
    }
    bool absent(int at) const { return argument(at).kind == Kind::none; }
    int64_t extent(const Extent& of) const { return of.at(int64_t(batch.tokens.size()), int64_t(rows.size())); }
    double number(int at) const { return argument(at).kind == Kind::scale ? scale : expect(at, Kind::number).number; }
    float real(int at) const { return float(number(at)); }
    int64_t whole(int at) const {
        const double value = number(at);
        if (!(std::fabs(value) < 1e15) || value != std::floor(value)) refuse("a number is not whole");
        return int64_t(value);
    }
    bool yes(int at) const { return whole(at) != 0; }
    View view(int at) const { return view(expect(at, Kind::array)); }
    View view_or_none(int at) const { return absent(at) ? View{} : view(at); }
    View view(const Argument& a) const {
        View v;
        v.data =
            (a.space == 's'   ? program.scratch_.get()
             : a.space == 'k' ? program.kept_.get()
                              : reinterpret_cast<uint8_t*>(const_cast<float*>(program.vectors_[size_t(a.index)]))) +
            a.offset;
        v.dtype = a.dtype;
        v.rows = extent(a.height), v.cols = extent(a.width), v.ld = extent(a.ld);
        return v;
    }
    // An array that is there and can be written.
    View out(int at) const {
        if (expect(at, Kind::array).space == 'v') refuse("a vector of the model cannot be written");
        return view(at);
    }
    View out_or_none(int at) const { return absent(at) ? View{} : out(at); }
    float* floats(int at, int64_t count) const {
        const View v = out(at);
        if (v.dtype != Dtype::f32 || v.rows != 1) refuse("a row of floats is expected");
        check_length(v.cols, count, "a row");
        return v.row<float>(0);
    }
    Matrix matrix(int at) const {
        const Argument& a = argument(at);
        if (a.kind == Kind::dense) {
            const View v = view(a);
            if (v.ld != v.cols && v.rows > 1) refuse("a dense weight has gaps");
            Matrix m;
            m.data = static_cast<const uint8_t*>(v.data);
            m.type = v.dtype == Dtype::f32 ? TensorType::F32 : TensorType::BF16;
            m.row_bytes = v.cols * size_of(v.dtype);
            m.rows = v.rows, m.cols = v.cols;
            return m;
        }
        expect(at, Kind::weight);
        Matrix m = program.weights_[size_t(a.index)];
        m.row0 = a.offset, m.col0 = a.column, m.rows = extent(a.height), m.cols = extent(a.width);
        return m;
    }
    checked::Indices numbers(int at) const {
        const Argument& a = argument(at);
        switch (a.kind) {
            case Kind::tokens: return {batch.tokens.data(), int64_t(batch.tokens.size())};
            case Kind::positions: return {batch.positions.data(), int64_t(batch.positions.size())};
            case Kind::targets: return {targets.data() + a.height.first, extent(a.height)};
            case Kind::rows: return {rows.data() + a.height.first, extent(a.height)};
            case Kind::others: return {others.data(), int64_t(others.size())};
            case Kind::boundaries: return {batch.boundaries.data(), int64_t(batch.boundaries.size())};
            default: refuse("numbers of the batch are expected");
        }
    }
    // Whether an array has no elements, because the batch has fewer supervised rows than the recording.
    bool is_empty(uint32_t count) const {
        for (int at = 0; at < int(count); at++) {
            const Argument& a = argument(at);
            if (a.kind == Kind::array && (!extent(a.height) || !extent(a.width))) return true;
        }
        return false;
    }
    checked::Attention attention(int heads, int boundaries, int scale_at, int prefix, int sinks) const {
        if (!absent(prefix)) refuse("a recording has no prefixes");
        return {whole(heads),
                whole(heads + 1),
                numbers(boundaries),
                numbers(boundaries + 1),
                {},
                real(scale_at),
                whole(scale_at + 1),
                real(scale_at + 2),
                sinks < 0 ? View{} : view_or_none(sinks)};
    }
    Activation activation(int at) const { return Activation(expect(at, Kind::activation).index); }
    int64_t layer(int at) const {
        const int64_t index = whole(at);
        if (index < 0 || index >= program.recording_.layers) refuse("a layer does not exist");
        return index;
    }
    View checkpoint(int at, const View& like) const {
        const Recording& r = program.recording_;
        const int64_t slot = whole(at);
        if (slot < 0 || slot >= r.slots || like.cols != r.width || like.rows > r.tokens)
            refuse("a checkpoint does not fit");
        View v = like;
        v.dtype = r.checkpoint;
        v.ld = r.width;
        v.data = program.checkpoints_.get() + slot * r.tokens * r.width * size_of(r.checkpoint);
        return v;
    }
    bool fixed() const { return program.recording_.compute == "int16"; }

    // The operations, in the words and with the arguments of engine/backend/protocol.py.
    void linear() {
        checked::linear(view(0), matrix(1), view_or_none(3), view_or_none(4), view_or_none(5), out(2), yes(6), fixed(),
                        false);
    }
    void linear_backward() {
        checked::linear_backward(view(0), matrix(1), view_or_none(3), view_or_none(4), out(2), yes(5), fixed());
    }
    void lora_in() { checked::lora_in(view(0), view(1), real(3), out(2), yes(4)); }
    void lora_gradient() { checked::lora_gradient(view(0), view(1), real(3), out(2), yes(4)); }
    void rms_norm() { checked::rms_norm(view(0), view(1), real(2), out(3), yes(4)); }
    void rms_norm_backward() { checked::rms_norm_backward(view(0), view(1), view(2), real(3), out(4), yes(5)); }
    void layer_norm() { checked::layer_norm(view(0), view(1), view_or_none(2), real(3), out(4)); }
    void layer_norm_backward() { checked::layer_norm_backward(view(0), view(1), view(2), real(3), out(4), yes(5)); }
    void rope() { checked::rope(view(0), {view(1), view(2), whole(4), yes(5)}, yes(6), out(3)); }
    void attention() {
        const View q = view(0), k = view(1), v = view(2), lse = out_or_none(4), p = out_or_none(12);
        const AttentionShape shape = checked::attention_shape(attention(5, 7, 9, 13, 14), q, k, v);
        checked::check_attention(shape, q, k, out(3), lse, p);
        ops().attention(q, k, v, shape, out(3), lse, p);
    }
    void attention_backward() {
        const View dout = view(0), q = view(1), k = view(2), v = view(3), o = view(4), lse = view(5),
                   p = view_or_none(17);
        const AttentionShape shape = checked::attention_shape(attention(10, 12, 14, 19, -1), q, k, v);
        checked::check_attention_backward(shape, dout, q, k, o, lse, p, out(6), out(7), out(8), out(9));
        ops().attention_backward(dout, q, k, v, o, lse, p, shape, out(6), out(7), out(8), out(9), yes(18));
    }
    void glu() { checked::glu(view(0), view_or_none(1), activation(3), out(2)); }
    void glu_backward() {
        checked::glu_backward(view(0), view(1), view_or_none(2), activation(5), out(3), out_or_none(4), out_or_none(6));
    }
    void cross_entropy_tile() {
        checked::cross_entropy_tile(view(0), numbers(2), whole(1), real(8), out(3), out(4), out(5), out_or_none(6),
                                    out_or_none(7));
    }
    void cross_entropy_finish() {
        checked::cross_entropy_finish(view(0), view(1), view(2), view_or_none(4), real(6), real(7), out_or_none(5),
                                      out(3));
    }
    void cast() { checked::cast(view(0), out(1)); }
    void fill() {
        const View v = out(0);
        const float value = real(1);
        if (v.dtype == Dtype::bf16 && value != 0) refuse("only zero is written to bf16");
        for (int64_t r = 0; r < v.rows; r++) {
            if (v.dtype == Dtype::bf16) std::memset(v.row<uint16_t>(r), 0, size_t(v.cols) * 2);
            else std::fill_n(v.row<float>(r), v.cols, value);
        }
    }
    void scale_by() {
        const View v = out(0);
        check_f32(v, "out");
        const float factor = real(1);
        for (int64_t r = 0; r < v.rows; r++)
            for (int64_t c = 0; c < v.cols; c++) v.row<float>(r)[c] *= factor;
    }
    void take_rows() { checked::take_rows(view(0), numbers(1), out(2)); }
    void put_rows() {
        const View values = view(0), x = out(2);
        const checked::Indices chosen = numbers(1);
        check_shape(values, chosen.count, x.cols, "values");
        if (values.dtype != x.dtype) refuse("values must have x's type");
        for (int64_t i = 0; i < chosen.count; i++) {
            if (chosen.data[i] < 0 || chosen.data[i] >= x.rows) refuse("a row is outside x");
            const size_t bytes = size_t(x.cols * size_of(x.dtype));
            if (x.dtype == Dtype::bf16) std::memcpy(x.row<uint16_t>(chosen.data[i]), values.row<uint16_t>(i), bytes);
            else std::memcpy(x.row<float>(chosen.data[i]), values.row<float>(i), bytes);
        }
    }
    void zero_rows() {
        const View x = out(0);
        check_f32(x, "x");
        const checked::Indices chosen = numbers(1);
        for (int64_t i = 0; i < chosen.count; i++) {
            if (chosen.data[i] < 0 || chosen.data[i] >= x.rows) refuse("a row is outside x");
            std::fill_n(x.row<float>(chosen.data[i]), x.cols, 0.0f);
        }
    }
    // Angles of every position are in the recording, so that they have the same bits everywhere.
    void rotary_table() {
        const Recording& r = program.recording_;
        const Recording::Table& table = r.tables[size_t(expect(0, Kind::table).index)];
        const checked::Indices positions = numbers(1);
        for (const auto& [at, from] : {std::pair{2, table.cos}, {3, table.sin}}) {
            const View v = out(at);
            check_shape(v, positions.count, table.cols, "a table");
            check_f32(v, "a table");
            for (int64_t i = 0; i < positions.count; i++) {
                const int64_t position = positions.data[i];
                if (position < 0 || position >= table.rows) refuse("a position is beyond the recording's");
                std::memcpy(v.row<float>(i), r.numbers<float>(from) + position * table.cols, size_t(table.cols) * 4);
            }
        }
    }
    // Rows are read past the mapping, of which each row would make pages around it resident.
    void gather_rows() {
        expect(0, Kind::weight);
        const Matrix w = matrix(0);
        const checked::Indices ids = numbers(1);
        const View rows_out = out(2);
        check_shape(rows_out, ids.count, w.cols, "out");
        if (w.row0 || w.col0) refuse("rows are gathered from whole weights");
        std::vector<uint8_t> row(size_t(w.row_bytes));
        Matrix one = w;
        one.data = row.data(), one.rows = 1;
        const int32_t first = 0;
        for (int64_t i = 0; i < ids.count; i++) {
            if (ids.data[i] < 0 || ids.data[i] >= w.rows) refuse("a token is outside the vocabulary");
            program.model_.read(w.data + ids.data[i] * w.row_bytes, row.data(), row.size());
            View place = rows_out;
            place.data = static_cast<uint8_t*>(place.data) + i * place.ld * size_of(place.dtype);
            place.rows = 1;
            checked::gather_rows(one, {&first, 1}, place);
        }
    }
    void fetch_values() { fetch(program.values); }
    void fetch_gradients() { fetch(program.sums); }
    void fetch(const Rows& rows_of) {
        const int64_t size = program.recording_.size;
        rows_of.read(layer(0), 0, size, floats(1, size));
    }
    void store_gradients() {
        const int64_t size = program.recording_.size;
        program.sums.write(layer(0), 0, size, floats(1, size));
    }
    void save() {
        const View x = view(1);
        checked::cast(x, checkpoint(0, x));
    }
    void load() {
        const View to = out(1);
        checked::cast(checkpoint(0, to), to);
    }
    void read_loss() {
        const View v = view(0);
        if (v.dtype != Dtype::f32 || v.rows != 1) refuse("a row of losses is expected");
        for (int64_t i = 0; i < v.cols; i++) loss += double(v.row<float>(0)[i]);
    }
    void release() {
        expect(0, Kind::weight);
        program.model_.release(matrix(0));
    }
};

namespace {

struct Entry {
    const char* name;
    int arguments;
    void (Operation::*run)();
};

constexpr Entry kEntries[] = {
    {"linear", 7, &Operation::linear},
    {"linear_backward", 6, &Operation::linear_backward},
    {"lora_in", 5, &Operation::lora_in},
    {"lora_gradient", 5, &Operation::lora_gradient},
    {"rms_norm", 5, &Operation::rms_norm},
    {"rms_norm_backward", 6, &Operation::rms_norm_backward},
    {"layer_norm", 5, &Operation::layer_norm},
    {"layer_norm_backward", 6, &Operation::layer_norm_backward},
    {"rope", 7, &Operation::rope},
    {"attention", 15, &Operation::attention},
    {"attention_backward", 20, &Operation::attention_backward},
    {"glu", 4, &Operation::glu},
    {"glu_backward", 7, &Operation::glu_backward},
    {"cross_entropy_tile", 9, &Operation::cross_entropy_tile},
    {"cross_entropy_finish", 8, &Operation::cross_entropy_finish},
    {"cast", 2, &Operation::cast},
    {"fill", 2, &Operation::fill},
    {"scale", 2, &Operation::scale_by},
    {"take_rows", 3, &Operation::take_rows},
    {"put_rows", 3, &Operation::put_rows},
    {"zero_rows", 2, &Operation::zero_rows},
    {"rotary_table", 4, &Operation::rotary_table},
    {"gather_rows", 3, &Operation::gather_rows},
    {"fetch_values", 2, &Operation::fetch_values},
    {"fetch_gradients", 2, &Operation::fetch_gradients},
    {"store_gradients", 2, &Operation::store_gradients},
    {"save", 2, &Operation::save},
    {"load", 2, &Operation::load},
    {"loss", 1, &Operation::read_loss},
    {"release", 1, &Operation::release},
};

}  // namespace

int operation_of(const std::string& name, int arguments) {
    int at = 0;
    for (const Entry& entry : kEntries) {
        if (name == entry.name) return arguments == entry.arguments ? at : -2;
        at++;
    }
    return -1;
}

Program::Program(const std::string& model, const std::string& recording, const std::string& folder)
    : values(0, 0, ""), sums(0, 0, ""), model_(model), recording_(recording) {
    const Recording& r = recording_;
    if (model_.checksum() != r.model)
        throw std::runtime_error(recording + " was recorded for another model than " + model);
    values = Rows(r.layers, r.size, folder);
    sums = Rows(r.layers, r.size, folder);
    for (const Recording::Weight& each : r.weights)
        weights_.push_back(model_.matrix(each.name, each.type, each.rows, each.cols));
    int64_t copied = 0;
    for (const Recording::Vector& each : r.vectors) copied += each.offset < 0 ? each.size : 0;
    copies_.reserve(size_t(copied));
    for (const Recording::Vector& each : r.vectors) {
        if (each.offset >= 0) {
            if (model_.checksum(each.name) != each.checksum)
                throw std::runtime_error(recording + " was recorded for another model than " + model);
            vectors_.push_back(r.numbers<float>(each.offset));
            continue;
        }
        const float* stored = model_.vector(each.name, each.size);
        copies_.resize(copies_.size() + size_t(each.size));
        float* place = copies_.data() + copies_.size() - each.size;
        model_.read(reinterpret_cast<const uint8_t*>(stored), place, size_t(each.size) * 4);
        vectors_.push_back(place);
    }
    scratch_ = allocated(r.scratch);
    kept_ = allocated(r.kept);
    checkpoints_ = allocated(r.slots * r.tokens * r.width * size_of(r.checkpoint));
}

double Program::gradients(const Batch& batch, double scale, const std::function<bool()>& goes_on) {
    const int64_t count = int64_t(batch.tokens.size());
    if (count < 1 || count > recording_.tokens)
        refuse("a batch has " + std::to_string(count) + " tokens; the recording allows 1 to " +
               std::to_string(recording_.tokens));
    if (batch.targets.size() != batch.tokens.size() || batch.positions.size() != batch.tokens.size())
        refuse("tokens, targets and positions must be equally many");
    std::vector<int32_t> rows, targets, others;
    for (int64_t i = 0; i < count; i++) {
        const int32_t target = batch.targets[size_t(i)];
        if (target >= recording_.vocabulary) refuse("a target is outside the vocabulary");
        (target >= 0 ? rows : others).push_back(int32_t(i));
        if (target >= 0) targets.push_back(target);
    }
    if (rows.empty()) return 0.0;
    if (int64_t(rows.size()) > recording_.rows)
        refuse("every token of a batch has a target, but the recording leaves one without");
    double loss = 0;
    Operation operation{*this, batch, rows, targets, others, scale, loss};
    for (const Recording::Call& call : recording_.calls) {
        if (!goes_on()) throw std::runtime_error("stopped");
        operation.words = recording_.words.data() + call.first;
        if (operation.is_empty(call.count)) continue;
        try {
            (operation.*kEntries[call.operation].run)();
        } catch (const std::invalid_argument& problem) {
            throw std::runtime_error("line " + std::to_string(call.line) + " of the recording, " +
                                     kEntries[call.operation].name + ": " + problem.what());
        }
    }
    model_.check_unchanged();
    return loss;
}

}  // namespace fb
