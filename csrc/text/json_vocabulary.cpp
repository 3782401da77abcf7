#include "text/json_vocabulary.h"

#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include "text/utf8.h"

namespace fb::text {
namespace {

constexpr uint32_t kMostIds = 1 << 22;         // more than any model has
constexpr size_t kMostText = size_t(1) << 28;  // bytes of all strings together
constexpr size_t kMostFacts = size_t(1) << 22;
constexpr int kDepth = 64;

}  // namespace

// Reads one character after another. Everything that is not part of the vocabulary is copied to the facts.
class JsonReader {
public:
    JsonReader(const JsonVocabulary::Source& source, JsonVocabulary& into) : source_(source), into_(into) {}

    void read() {
        object([this](const std::string& key) {
            if (key != "model" || peek() != '{') return skip();
            object([this](const std::string& inner) {
                if (inner == "vocab" && peek() == '{') return null_for([this] { vocabulary(); });
                if (inner == "vocab" && peek() == '[') return null_for([this] { skip(); });
                if (inner == "merges" && peek() == '[') return null_for([this] { merges(); });
                skip();
            });
        });
        space();
        if (!at_end()) fail("more text behind the object");
    }

private:
    [[noreturn]] void fail(const std::string& what) const {
        throw std::invalid_argument(what + " at byte " + std::to_string(read_));
    }

    bool at_end() {
        if (at_ < filled_) return false;
        filled_ = source_(buffer_, sizeof buffer_);
        at_ = 0;
        return !filled_;
    }
    char next() {
        if (at_end()) fail("the text ends");
        const char c = buffer_[at_++];
        read_++;
        if (keeps_) keep(c);
        return c;
    }
    void keep(char c) {
        if (into_.facts_.size() >= kMostFacts) fail("more facts beside the vocabulary than any tokenizer has");
        into_.facts_ += c;
    }
    // Returns the next character after white space.
    char peek() {
        space();
        if (at_end()) fail("the text ends");
        return buffer_[at_];
    }
    void space() {
        while (!at_end() && std::strchr(" \t\r\n", buffer_[at_]) && buffer_[at_]) at_++, read_++;
    }
    void expect(char c) {
        if (peek() != c) fail(std::string("'") + c + "' is missing");
        next();
    }

    template <class Body>
    void null_for(const Body& body) {
        const bool kept = keeps_;
        keeps_ = false;
        body();
        keeps_ = kept;
        for (const char c : std::string_view("null")) keep(c);
    }

    // Calls `member(key)` at each value, which it must read.
    template <class Member>
    void object(const Member& member) {
        if (++depth_ > kDepth) fail("nesting that is too deep");
        expect('{');
        for (bool first = true; peek() != '}'; first = false) {
            if (!first) expect(',');
            std::string key;
            string(key);
            expect(':');
            member(key);
        }
        next();
        depth_--;
    }
    template <class Element>
    void array(const Element& element) {
        if (++depth_ > kDepth) fail("nesting that is too deep");
        expect('[');
        for (bool first = true; peek() != ']'; first = false) {
            if (!first) expect(',');
            element();
        }
        next();
        depth_--;
    }

    void skip() {
        const char c = peek();
        if (c == '{') return object([this](const std::string&) { skip(); });
        if (c == '[') return array([this] { skip(); });
        if (c == '"') return string(skipped_);
        const uint64_t before = read_;
        while (!at_end() && buffer_[at_] && !std::strchr(",]}\" \t\r\n", buffer_[at_])) next();
        if (read_ == before) fail("a value is missing");
    }

    void string(std::string& into) {
        into.clear();
        expect('"');
        for (char c; (c = next()) != '"';) {
            if (uint8_t(c) < 0x20) fail("a control character in a string");
            if (c == '\\') escape(into);
            else into += c;
            if (into.size() > kMostText) fail("a string that is too long");
        }
        if (!is_valid(into)) fail("a string that is not UTF-8");
    }
    void escape(std::string& into) {
        static constexpr char kFrom[] = "\"\\/bfnrt", kTo[] = "\"\\/\b\f\n\r\t";
        const char c = next();
        if (c == 'u') return append(into, code_point());
        const char* found = c ? std::strchr(kFrom, c) : nullptr;
        if (!found) fail("an unknown escape");
        into += kTo[found - kFrom];
    }
    uint32_t code_point() {
        const uint32_t first = unit();
        if (first < 0xD800 || first >= 0xE000) return first;
        if (first >= 0xDC00 || next() != '\\' || next() != 'u') fail("half a surrogate pair");
        const uint32_t second = unit();
        if (second < 0xDC00 || second >= 0xE000) fail("half a surrogate pair");
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
    uint32_t unit() {
        uint32_t value = 0;
        for (int i = 0; i < 4; i++) {
            const char c = next(), lower = char(c | 0x20);
            if (c >= '0' && c <= '9') value = value * 16 + uint32_t(c - '0');
            else if (lower >= 'a' && lower <= 'f') value = value * 16 + uint32_t(lower - 'a' + 10);
            else fail("an unknown escape");
        }
        return value;
    }
    uint32_t number() {
        uint32_t value = 0, digits = 0;
        peek();
        for (; !at_end() && buffer_[at_] >= '0' && buffer_[at_] <= '9'; digits++) {
            value = value * 10 + uint32_t(next() - '0');
            if (value >= kMostIds) fail("a token with a number beyond any model's");
        }
        if (!digits) fail("a token without a number");
        return value;
    }

    void vocabulary() {
        object([this](const std::string& token) {
            const uint32_t id = number();
            if (id < into_.size() && into_.places_[id].size)
                fail("a second token with the number " + std::to_string(id));
            into_.add(id, token);
        });
    }

    void merges() {
        std::string merge, part;
        array([&] {
            merge.clear();
            if (peek() == '[') {
                int parts = 0;
                array([&] {
                    string(part);
                    if (part.find(' ') != std::string::npos) fail("a merge of text with spaces");
                    if (parts++) merge += ' ';
                    merge += part;
                });
                if (parts != 2) fail("a merge that does not join two tokens");
            } else {
                string(merge);
            }
            if (++into_.n_merges_ > kMostIds) fail("more merges than any model has");
            const uint64_t size = merge.size();
            into_.merges_.append(reinterpret_cast<const char*>(&size), sizeof size).append(merge);
            if (into_.merges_.size() > kMostText) fail("merges that are too long");
        });
    }

    const JsonVocabulary::Source& source_;
    JsonVocabulary& into_;
    char buffer_[1 << 16];
    size_t at_ = 0, filled_ = 0;
    uint64_t read_ = 0;
    int depth_ = 0;
    bool keeps_ = true;
    std::string skipped_;
};

JsonVocabulary::JsonVocabulary(const Source& source) { JsonReader(source, *this).read(); }

void JsonVocabulary::add(uint32_t id, std::string_view text) {
    if (id >= kMostIds) throw std::invalid_argument("a token with the number " + std::to_string(id));
    if (text_.size() + text.size() > kMostText) throw std::invalid_argument("tokens that are too long");
    if (id >= places_.size()) places_.resize(id + 1, {0, 0});
    places_[id] = {uint32_t(text_.size()), uint32_t(text.size())};
    text_ += text;
}

std::vector<int64_t> JsonVocabulary::find(const std::vector<std::string>& texts) const {
    std::unordered_map<std::string_view, int64_t> found;
    for (const std::string& text : texts) found.emplace(text, -1);
    for (uint32_t id = 0; id < size(); id++) {
        const auto wanted = found.find(std::string_view(text_).substr(places_[id].start, places_[id].size));
        if (wanted != found.end()) wanted->second = id;
    }
    std::vector<int64_t> ids;
    for (const std::string& text : texts) ids.push_back(found.at(text));
    return ids;
}

std::string JsonVocabulary::tokens() const {
    std::string all;
    all.reserve(text_.size() + places_.size() * sizeof(uint64_t));
    for (const Place place : places_) {
        const uint64_t size = place.size;
        all.append(reinterpret_cast<const char*>(&size), sizeof size).append(text_, place.start, place.size);
    }
    return all;
}

}  // namespace fb::text
