#include "program/recording.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <unordered_map>

#include "core/checked.h"
#include "host/faults.h"
#include "host/file.h"

namespace fb {

namespace {

constexpr int64_t kMostFile = int64_t(1) << 32, kMostLines = 1 << 22, kMostExtent = (int64_t(1) << 31) - 1;

// Words and lines of a text. Every error names the line.
class Text {
public:
    Text(const char* at, const char* end) : at_(at), end_(end) {}

    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error("line " + std::to_string(line_) + " of the recording: " + what);
    }
    void next() {
        if (at_ < end_ && *at_ != '\n') fail("there are more words than expected");
        if (at_ == end_) fail("the text ends too early");
        at_++, line_++;
    }
    bool ends_line() const { return at_ == end_ || *at_ == '\n'; }
    std::string word() {
        if (at_ < end_ && *at_ == ' ') at_++;
        const char* begin = at_;
        while (at_ < end_ && *at_ != ' ' && *at_ != '\n') at_++;
        if (at_ == begin) fail("a word is missing");
        return {begin, size_t(at_ - begin)};
    }
    void expect(const char* wanted) {
        if (word() != wanted) fail(std::string("expected '") + wanted + "'");
    }
    int64_t number(const std::string& text, int64_t most = kMost, int64_t least = 0) const {
        char* end = nullptr;
        errno = 0;
        const long long value = std::strtoll(text.c_str(), &end, 10);
        if (errno || end == text.c_str() || *end || value < least || value > most)
            fail("'" + excerpt(text) + "' is not a whole number from " + std::to_string(least) + " to " +
                 std::to_string(most));
        return value;
    }
    int64_t number(int64_t most = kMost, int64_t least = 0) { return number(word(), most, least); }
    int64_t number_or_none() {
        const std::string text = word();
        return text == "-" ? -1 : number(text);
    }
    uint64_t hexadecimal() { return std::strtoull(word().c_str(), nullptr, 16); }
    int64_t line() const { return line_; }
    const char* place() const { return at_; }

private:
    const char *at_, *end_;
    int64_t line_ = 1;
};

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == by) parts.emplace_back();
        else parts.back() += c;
    }
    return parts;
}

Dtype dtype_of(const Text& text, const std::string& name) {
    if (name == "f32") return Dtype::f32;
    if (name == "bf16") return Dtype::bf16;
    text.fail("'" + excerpt(name) + "' is not a type of arrays");
}

// Parses arguments, and checks that arrays lie in their spaces when a batch is as large as the recording allows. With
// fewer tokens and rows every array becomes smaller and begins where it did.
class Arguments {
public:
    Arguments(const Recording& recording, const Text& text) : recording_(recording), text_(text) {}

    Argument parse(const std::string& word) const {
        Argument found;
        if (word == "-") return found;
        if (word == "scale") return of(Argument::Kind::scale);
        if (word == "cu") return of(Argument::Kind::boundaries);
        if (numbers(word, found)) return found;
        if (word[0] == 'w') return weight(word.substr(1));
        if (word[0] == 't') {
            found.kind = Argument::Kind::table;
            found.index = int32_t(text_.number(word.substr(1), int64_t(recording_.tables.size()) - 1));
            return found;
        }
        if (word[0] == 'd') {
            found = array(word.substr(1));
            found.kind = Argument::Kind::dense;
            return found;
        }
        if (word.find('+') != std::string::npos && word.find(':') != std::string::npos) return array(word);
        // Without a decimal point, so that the locale of a program does not matter.
        char* end = nullptr;
        found.kind = Argument::Kind::number;
        found.number = std::strtod(word.c_str(), &end);
        if (end != word.c_str() && !*end) return found;
        found.kind = Argument::Kind::activation;
        try {
            found.index = int32_t(checked::activation_of(word));
        } catch (const std::invalid_argument&) {
            text_.fail("'" + excerpt(word) + "' is not an argument");
        }
        return found;
    }

private:
    static Argument of(Argument::Kind kind) {
        Argument found;
        found.kind = kind;
        return found;
    }

    Extent extent(const std::string& word) const {
        Extent found;
        if (word == "T") {
            found.of = Extent::Of::tokens;
            found.last = int32_t(recording_.tokens);
        } else if (word == "R") {
            found.of = Extent::Of::rows;
            found.last = int32_t(recording_.rows);
        } else if (word[0] == 'R') {
            found = range(word.substr(1));
        } else {
            found.last = int32_t(text_.number(word, kMostExtent));
        }
        return found;
    }

    Extent range(const std::string& word) const {
        const auto ends = split(word, '-');
        if (ends.size() != 2) text_.fail("'" + excerpt(word) + "' is not a range");
        Extent found;
        found.of = Extent::Of::rows;
        found.last = int32_t(text_.number(ends[1], recording_.rows));
        found.first = int32_t(text_.number(ends[0], found.last));
        return found;
    }

    bool numbers(const std::string& word, Argument& found) const {
        using Kind = Argument::Kind;
        const std::pair<const char*, Kind> kinds[] = {{"tokens", Kind::tokens},
                                                      {"positions", Kind::positions},
                                                      {"targets", Kind::targets},
                                                      {"rows", Kind::rows},
                                                      {"others", Kind::others}};
        const auto parts = split(word, ':');
        for (const auto& [name, kind] : kinds) {
            if (parts[0] != name || parts.size() > 2) continue;
            found.kind = kind;
            found.height = parts.size() == 2 ? range(parts[1]) : extent("R");
            return true;
        }
        return false;
    }

    Argument weight(const std::string& word) const {
        const auto parts = split(word, ':');
        if (parts.size() != 5) text_.fail("a weight has five numbers");
        Argument found;
        found.kind = Argument::Kind::weight;
        found.index = int32_t(text_.number(parts[0], int64_t(recording_.weights.size()) - 1));
        const auto& [name, type, rows, cols] = recording_.weights[size_t(found.index)];
        found.offset = text_.number(parts[1], rows);
        found.column = text_.number(parts[2], cols);
        found.height.last = int32_t(text_.number(parts[3], rows - found.offset));
        found.width.last = int32_t(text_.number(parts[4], cols - found.column));
        const int64_t block = block_shape(type).weights, end = found.column + found.width.last;
        if (found.column % block || (end % block && end != cols)) text_.fail("a rectangle cuts a block of a weight");
        return found;
    }

    Argument array(const std::string& word) const {
        const auto parts = split(word, ':');
        const auto place = split(parts[0], '+');
        if (parts.size() != 5 || place.size() != 2 || place[0].empty()) text_.fail("an array has five parts");
        Argument found;
        found.kind = Argument::Kind::array;
        found.space = place[0][0];
        found.offset = text_.number(place[1]);
        found.height = extent(parts[1]);
        found.width = extent(parts[2]);
        found.ld = extent(parts[3]);
        found.dtype = dtype_of(text_, parts[4]);
        int64_t room = 0;
        if (found.space == 'v') {
            found.index = int32_t(text_.number(place[0].substr(1), int64_t(recording_.vectors.size()) - 1));
            room = recording_.vectors[size_t(found.index)].size * 4;
            if (found.dtype != Dtype::f32) text_.fail("a vector is f32");
        } else if (place[0] == "s" || place[0] == "k") {
            room = found.space == 's' ? recording_.scratch : recording_.kept;
        } else {
            text_.fail("'" + excerpt(place[0]) + "' is not a space");
        }
        const auto most = [&](const Extent& each) { return each.at(recording_.tokens, recording_.rows); };
        const int64_t rows = most(found.height), cols = most(found.width), ld = most(found.ld),
                      size = size_of(found.dtype);
        // Rows of a smaller batch must not move closer together than their columns.
        if (rows > 1 && (ld < cols || (found.ld.of != found.width.of && found.ld.of != Extent::Of::number)))
            text_.fail("the rows of an array overlap");
        const int64_t elements = rows && cols ? product({rows - 1, ld}, "an array") + cols : 0;
        if (found.offset % size || found.offset > room || product({elements, size}, "an array") > room - found.offset)
            text_.fail("an array lies outside its space");
        return found;
    }

    const Recording& recording_;
    const Text& text_;
};

}  // namespace

Recording::Recording(const std::string& path) {
    File file = File::open(path);
    const int64_t bytes = file.size();
    if (bytes < 32 || bytes > kMostFile) throw std::runtime_error(path + " is not a recording");
    const MapGuard guard(file.map(), size_t(bytes));
    const char* begin = reinterpret_cast<const char*>(file.map());
    Text text(begin, begin + bytes);
    if (std::string(begin, 21) != "featherback-recording") throw std::runtime_error(path + " is not a recording");
    const auto section = [&](const char* name, auto&& each) {
        text.expect(name);
        const int64_t count = text.number(kMostLines);
        text.next();
        for (int64_t i = 0; i < count; i++, text.next()) each();
    };
    text.expect("featherback-recording"), text.expect("1"), text.next();
    text.expect("model"), model = text.hexadecimal(), text.next();
    text.expect("compute"), compute = text.word(), text.next();
    if (compute != "fp32" && compute != "bf16" && compute != "int16") text.fail("this compute is unknown");
    text.expect("vocabulary"), vocabulary = text.number(kMostExtent), text.next();
    text.expect("tokens"), tokens = text.number(1 << 20, 2), text.expect("rows"), rows = text.number(tokens - 1, 1),
                           text.next();
    text.expect("scratch"), scratch = text.number(int64_t(1) << 40), text.expect("kept"),
                            kept = text.number(int64_t(1) << 40);
    text.next();
    text.expect("checkpoints"), slots = text.number(1 << 16), width = text.number(1 << 24),
                                checkpoint = dtype_of(text, text.word());
    product({slots, tokens, width, 4}, "the checkpoints"), text.next();
    text.expect("adapter"), layers = text.number(1 << 16), size = text.number(kMostExtent), text.next();
    product({layers, size, 4}, "the adapter");
    section("weights", [&] {
        Weight each;
        each.name = text.word();
        each.type = TensorType(text.number(1 << 16));
        each.rows = text.number(kMostExtent), each.cols = text.number(kMostExtent);
        if (!block_shape(each.type).weights) text.fail("this type of weights is unknown");
        weights.push_back(each);
    });
    section("vectors", [&] {
        Vector each;
        each.name = text.word(), each.size = text.number(kMostExtent), each.offset = text.number_or_none();
        each.checksum = each.offset < 0 ? 0 : text.hexadecimal();
        vectors.push_back(each);
    });
    section("tables", [&] {
        Table each;
        each.cos = text.number(), each.sin = text.number(), each.rows = text.number(1 << 20),
        each.cols = text.number(1 << 20);
        tables.push_back(each);
    });
    section("values", [&] {
        Value each;
        each.name = text.word(), each.layer = text.number(layers - 1), each.start = text.number(size);
        each.rows = text.number(kMostExtent), each.cols = text.number(kMostExtent);
        each.row_step = text.number(size), each.col_step = text.number(size);
        each.row_order = text.number_or_none(), each.col_order = text.number_or_none();
        values.push_back(each);
    });
    const Arguments parser(*this, text);
    std::unordered_map<std::string, uint32_t> places;  // of arguments: most words come again and again
    section("calls", [&] {
        const std::string name = text.word();
        const size_t first = words.size();
        while (!text.ends_line()) {
            const std::string word = text.word();
            const auto [known, is_new] = places.emplace(word, uint32_t(arguments.size()));
            if (is_new) arguments.push_back(parser.parse(word));
            words.push_back(known->second);
        }
        const size_t count = words.size() - first;
        const Call call{operation_of(name, int(count)), uint32_t(text.line()), uint32_t(first), uint32_t(count)};
        if (call.operation == -1) text.fail("the operation '" + excerpt(name) + "' is unknown");
        if (call.operation < 0) text.fail("the number of arguments is wrong");
        calls.push_back(call);
    });
    words.shrink_to_fit(), arguments.shrink_to_fit(), calls.shrink_to_fit();
    text.expect("numbers");
    const int64_t count = text.number(kMostFile);
    text.next();
    const int64_t behind = begin + bytes - text.place();
    if (behind > count || count - behind > 64) text.fail("there are more or fewer numbers than the text says");
    constants.assign(size_t(count), 0);
    std::memcpy(constants.data(), text.place(), size_t(behind));
    if (guard.lost()) throw std::runtime_error(path + " was cut short while it was read");
    const auto lies_inside = [&](int64_t offset, int64_t bytes_of) {
        return offset % 4 == 0 && offset >= 0 && offset <= count && bytes_of <= count - offset;
    };
    for (const Vector& each : vectors)
        if (each.offset >= 0 && !lies_inside(each.offset, each.size * 4))
            throw std::runtime_error("a vector lies outside the recording");
    for (const Table& each : tables)
        if (!lies_inside(each.cos, each.rows * each.cols * 4) || !lies_inside(each.sin, each.rows * each.cols * 4))
            throw std::runtime_error("a table lies outside the recording");
    std::vector<int64_t> sizes(size_t(layers), 0);
    for (const Value& each : values)
        sizes[size_t(each.layer)] += product({each.rows, each.cols}, "a tensor of the adapter");
    if (layers < 1 || *std::max_element(sizes.begin(), sizes.end()) != size)
        throw std::runtime_error("the adapter's tensors do not fill a layer");
    for (const Value& each : values) {
        const auto last = [&](int64_t order, int64_t n, int64_t step) {
            if (n == 0) return int64_t(0);
            int64_t most = n - 1;
            if (order >= 0) {
                if (!lies_inside(order, n * 4)) throw std::runtime_error("an order lies outside the recording");
                most = 0;
                for (int64_t i = 0; i < n; i++) {
                    const int32_t at = numbers<int32_t>(order)[i];
                    if (at < 0) throw std::runtime_error("an order is negative");
                    most = std::max<int64_t>(most, at);
                }
            }
            return product({most, step}, "a tensor of the adapter");
        };
        product({each.rows, each.cols, 4}, "a tensor of the adapter");
        if (each.start + last(each.row_order, each.rows, each.row_step) +
                last(each.col_order, each.cols, each.col_step) >=
            size)
            throw std::runtime_error("the adapter's tensor " + excerpt(each.name) + " lies outside its layer");
    }
}

}  // namespace fb
