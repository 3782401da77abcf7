// Each function implements a regular expression. The tests compare it with that expression.
#include "text/cuts.h"

#include <cstring>
#include <stdexcept>

#include "text/unicode.h"
#include "text/utf8.h"

namespace fb::text {
namespace {

uint8_t class_of(const char* at, const char* end, uint32_t* bytes = nullptr) {
    static const CharTable& classes = char_classes();
    const Char c = read_char(at, end);
    if (bytes) *bytes = c.bytes;
    return classes[c.code];
}

// The end of the run of characters of the classes `of` and not `without`, at most `most` of them.
const char* run(const char* at, const char* end, uint8_t of, int64_t most = INT64_MAX, uint8_t without = 0) {
    for (uint32_t bytes; at < end && most; most--) {
        const uint8_t found = class_of(at, end, &bytes);
        if (!(found & of) || (found & without)) break;
        at += bytes;
    }
    return at;
}

bool is_break(char c) { return c == '\r' || c == '\n'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

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
    if (const uint8_t of = class_of(at, end) & (kLetter | kNumber | kOther)) return run(at, end, of);
    return spaces(begin, end);
}

// A run of kOther, without characters of `word`, and what `also` accepts after it; or white space up to a line break,
// or before more text.
//  ?[^\s\p{L}\p{N}]+[also]*|\s*[\r\n]+|\s+(?!\S)|\s+
template <class Also>
const char* marks_or_spaces(const char* begin, const char* end, const Also& also, uint8_t word = kLetter) {
    const char* other = *begin == ' ' ? begin + 1 : begin;
    if (const char* stop = run(other, end, kOther, INT64_MAX, word); stop > other) {
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
    const uint8_t word = marks ? kLetter | kUpper | kLower : kLetter;
    uint32_t bytes;
    const uint8_t first = class_of(begin, end, &bytes);
    if (first & kNumber) return run(begin, end, kNumber, most);
    const char* second = begin + bytes;
    if (first & word) return run(second, end, word);
    if (!is_break(*begin) && second < end && (class_of(second, end) & word)) return run(second, end, word);
    return marks_or_spaces(begin, end, is_break, word);
}
const char* llama3_triples(const char* begin, const char* end) { return llama3(begin, end, 3); }
const char* llama3_digits(const char* begin, const char* end) { return llama3(begin, end, 1); }
const char* llama3_marks(const char* begin, const char* end) { return llama3(begin, end, 1, true); }

// The end of U*W+, with U and W for kUpper and kLower, or null.
const char* upper_then_lower(const char* at, const char* end) {
    const char* last = nullptr;  // the end of the last character of U* that W+ can have instead
    uint32_t bytes;
    for (uint8_t of; at < end && ((of = class_of(at, end, &bytes)) & kUpper); at += bytes)
        if (of & kLower) last = at + bytes;
    const char* stop = run(at, end, kLower);
    return stop > at ? stop : last;
}

// With U and W for kUpper and kLower, and C for (?i:'s|'t|'re|'ve|'m|'ll|'d):
// [^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
const char* gpt4o(const char* begin, const char* end) {
    uint32_t bytes;
    const uint8_t first = class_of(begin, end, &bytes);
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
    return stop > begin ? stop : run(begin, end, uint8_t(~kNumber));
}

// \p{N}+
const char* digits(const char* begin, const char* end) {
    const char* stop = run(begin, end, kNumber);
    return stop > begin ? stop : run(begin, end, uint8_t(~kNumber));
}

// [0-9][0-9][0-9]
const char* ascii_triple(const char* begin, const char* end) {
    const char* found = begin;
    while (end - found >= 3 && !(is_digit(found[0]) && is_digit(found[1]) && is_digit(found[2]))) found++;
    if (end - found < 3) return end;
    return found > begin ? found : begin + 3;
}

// [\p{P}\$\+<=>\^~\|]+
const char* punctuation(const char* begin, const char* end) {
    const auto is_mark = [end](const char* at, uint32_t& bytes) {
        return (class_of(at, end, &bytes) & kPunctuation) || (*at && std::strchr("$+<=>^~|", *at));
    };
    uint32_t bytes;
    const bool mark = is_mark(begin, bytes);
    const char* at = begin + bytes;
    while (at < end && is_mark(at, bytes) == mark) at += bytes;
    return at;
}

}  // namespace

Cut find_cut(const std::string& name) {
    static constexpr struct {
        const char* name;
        Cut cut;
    } kCuts[] = {
        {"gpt2", gpt2},
        {"llama3", llama3_triples},
        {"llama3-digits", llama3_digits},
        {"digit", digit},
        {"digits", digits},
        {"gpt-4o", gpt4o},
        {"ascii-triple", ascii_triple},
        {"punctuation", punctuation},
        {"llama3-marks", llama3_marks},
    };
    for (const auto& known : kCuts)
        if (name == known.name) return known.cut;
    throw std::invalid_argument("the pre-tokenizer '" + name + "' is unknown");
}

}  // namespace fb::text
