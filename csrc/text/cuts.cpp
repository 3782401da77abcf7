// The expressions of many models as functions, several times as fast as `Expression`. The tests compare them.
#include "text/cuts.h"

#include <cstring>

#include "text/expression.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace fb::text {
namespace {

CharSet category_at(const char* at, const char* end, uint32_t* bytes = nullptr) {
    const Char c = read_char(at, end);
    if (bytes) *bytes = c.bytes;
    return category(c.code);
}

// The end of the run of characters of the categories `of`, at most `most` of them.
const char* run(const char* at, const char* end, CharSet of, int64_t most = INT64_MAX) {
    for (uint32_t bytes; at < end && most && (category_at(at, end, &bytes) & of); most--) at += bytes;
    return at;
}

bool is_break(char c) { return c == '\r' || c == '\n'; }

// 's|'t|'re|'ve|'m|'ll|'d, or null. If case is ignored, U+017F counts as an s.
const char* contraction(const char* at, const char* end, bool any_case) {
    if (*at != '\'') return nullptr;
    const auto letter = [&](int i) -> char {
        if (end - at <= i) return 0;
        return any_case && at[i] >= 'A' && at[i] <= 'Z' ? char(at[i] + 32) : at[i];
    };
    const char first = letter(1), second = letter(2);
    if (first && std::strchr("stmd", first)) return at + 2;
    if ((second == 'e' && (first == 'r' || first == 'v')) || (first == 'l' && second == 'l')) return at + 3;
    if (any_case && end - at > 2 && read_char(at + 1, end).code == 0x17F) return at + 3;
    return nullptr;
}

// \s+(?!\S)|\s+ for text that begins with a space: the run, without its last character if more text follows.
const char* spaces(const char* begin, const char* end) {
    const char* stop = run(begin, end, kSpace);
    if (stop == end) return stop;
    const char* last = stop - 1;
    while (is_continuation(*last)) last--;
    return last > begin ? last : stop;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const char* gpt2(const char* begin, const char* end) {
    if (const char* stop = contraction(begin, end, false)) return stop;
    const char* at = *begin == ' ' && begin + 1 < end ? begin + 1 : begin;
    const CharSet first = category_at(at, end);
    for (const CharSet of : {kLetter, kNumber, kOther})
        if (first & of) return run(at, end, of);
    return spaces(begin, end);
}

// A run of kOther, without characters of `word`, and what `also` accepts after it; or white space up to a line break,
// or before more text.
//  ?[^\s\p{L}\p{N}]+[also]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <class Also>
const char* marks_or_spaces(const char* begin, const char* end, const Also& also, CharSet word = kLetter) {
    const char* other = *begin == ' ' ? begin + 1 : begin;
    if (const char* stop = run(other, end, kOther & ~word); stop > other) {
        while (stop < end && also(*stop)) stop++;
        return stop;
    }
    const char* stop = run(begin, end, kSpace);
    while (stop > begin && !is_break(stop[-1])) stop--;
    return stop > begin ? stop : spaces(begin, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}|
// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// With marks, \p{L}+ is [\p{L}\p{M}]+, and [^\s\p{L}\p{N}]+ is [^\s\p{L}\p{M}\p{N}]+.
const char* llama3(const char* begin, const char* end, int most, bool marks = false) {
    if (const char* stop = contraction(begin, end, true)) return stop;
    const CharSet word = marks ? kLetter | kMark : kLetter;
    uint32_t bytes;
    const CharSet first = category_at(begin, end, &bytes);
    if (first & kNumber) return run(begin, end, kNumber, most);
    const char* second = begin + bytes;
    if (first & word) return run(second, end, word);
    if (!is_break(*begin) && second < end && (category_at(second, end) & word)) return run(second, end, word);
    return marks_or_spaces(begin, end, is_break, word);
}
const char* llama3_triples(const char* begin, const char* end) { return llama3(begin, end, 3); }
const char* llama3_digits(const char* begin, const char* end) { return llama3(begin, end, 1); }
const char* llama3_marks(const char* begin, const char* end) { return llama3(begin, end, 1, true); }

// The end of U*W+, with U and W for kUpper and kLower, or null.
const char* upper_then_lower(const char* at, const char* end) {
    const char* last = nullptr;  // the end of the last character of U* that W+ can have instead
    uint32_t bytes;
    for (CharSet of; at < end && ((of = category_at(at, end, &bytes)) & kUpper); at += bytes)
        if (of & kLower) last = at + bytes;
    const char* stop = run(at, end, kLower);
    return stop > at ? stop : last;
}

// With U and W for kUpper and kLower, and C for (?i:'s|'t|'re|'ve|'m|'ll|'d):
// [^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
const char* gpt4o(const char* begin, const char* end) {
    uint32_t bytes;
    const CharSet first = category_at(begin, end, &bytes);
    if (first & kNumber) return run(begin, end, kNumber, 3);
    const char* second = (first & kLetter) || is_break(*begin) ? begin : begin + bytes;
    const char* stop = second > begin ? upper_then_lower(second, end) : nullptr;
    if (!stop) stop = upper_then_lower(begin, end);
    for (const char* at : {second, begin})  // no W follows the run of U, or a part of the expression before had matched
        if (const char* last = stop ? stop : run(at, end, kUpper); last > at) {
            const char* more = last < end ? contraction(last, end, true) : nullptr;
            return more ? more : last;
        }
    return marks_or_spaces(begin, end, [](char c) { return is_break(c) || c == '/'; });
}

// \p{N}
const char* digit(const char* begin, const char* end) {
    const char* stop = run(begin, end, kNumber, 1);
    return stop > begin ? stop : run(begin, end, CharSet(kAll & ~kNumber));
}

}  // namespace

Cut make_cut(const std::string& expression) {
    static constexpr struct {
        const char* expression;
        const char* (*cut)(const char*, const char*);
    } kCuts[] = {
        {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", gpt2},
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
         R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
         llama3_triples},
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
         R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
         llama3_digits},
        {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
         R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
         llama3_marks},
        {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
         R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
         R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
         gpt4o},
        {R"(\p{N})", digit},
    };
    for (const auto& known : kCuts)
        if (expression == known.expression) return known.cut;
    return Expression(expression);
}

}  // namespace fb::text
