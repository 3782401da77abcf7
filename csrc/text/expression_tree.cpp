#include "text/expression_tree.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "text/utf8.h"

namespace fb::text {
namespace {

constexpr uint32_t kMostRepeats = 1 << 12;
constexpr int kDeepest = 32;  // groups inside one another

[[noreturn]] void unsupported(const std::string& what) {
    throw std::invalid_argument("a regular expression with " + what);
}

constexpr struct {
    const char* name;
    CharSet categories;
} kProperties[] = {
    {"L", kLetter}, {"Lu", kUpperCase}, {"Ll", kLowerCase}, {"Lt", kTitleCase},  {"Lm", kModifier}, {"Lo", kCaseless},
    {"M", kMark},   {"N", kNumber},     {"Nd", kDigit},     {"P", kPunctuation}, {"S", kSymbol},
};

bool is_letter(uint32_t code) { return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z'); }

// Whether one character folds to these two: U+00DF to ss, U+FB00 to ff ...
bool is_folded_pair(uint32_t first, uint32_t second) {
    first |= 0x20, second |= 0x20;
    return (first == 's' && (second == 's' || second == 't')) ||
           (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
}

class Parser {
public:
    explicit Parser(std::string_view pattern) : at_(pattern.data()), end_(at_ + pattern.size()) {}

    Node whole() {
        Node node = choice(false, 0);
        if (at_ < end_) unsupported("an unmatched bracket");
        return node;
    }

private:
    bool take(std::string_view text) {
        if (size_t(end_ - at_) < text.size() || std::memcmp(at_, text.data(), text.size())) return false;
        at_ += text.size();
        return true;
    }

    uint32_t next() {
        if (at_ == end_) unsupported("an end in the middle");
        const Char c = read_char(at_, end_);
        at_ += c.bytes;
        return c.code;
    }

    Node choice(bool any_case, int depth) {
        if (depth > kDeepest) unsupported("too many groups inside one another");
        Node node{Node::kChoice, {}, {}};
        do node.parts.push_back(sequence(any_case, depth));
        while (take("|"));
        return node;
    }

    Node sequence(bool any_case, int depth) {
        Node node{Node::kSequence, {}, {}};
        uint32_t before = 0;  // the letter before this place, where case is ignored
        while (at_ < end_ && *at_ != '|' && *at_ != ')') {
            const uint32_t letter = any_case && is_letter(uint8_t(*at_)) ? uint8_t(*at_) : 0;
            if (before && letter && is_folded_pair(before, letter)) unsupported("letters that one character folds to");
            before = letter;
            node.parts.push_back(repeated(atom(any_case, depth)));
        }
        return node;
    }

    Node group(bool any_case, int depth, Node::Kind kind = Node::kSequence) {
        Node inner = choice(any_case, depth + 1);
        if (!take(")")) unsupported("an unmatched bracket");
        if (kind == Node::kSequence) return inner;
        Node node{kind, {}, {}};
        node.parts.push_back(std::move(inner));
        return node;
    }

    Node atom(bool any_case, int depth) {
        if (take("(?:")) return group(any_case, depth);
        if (take("(?i:")) return group(true, depth);
        if (take("(?=")) return group(any_case, depth, Node::kAhead);
        if (take("(?!")) return group(any_case, depth, Node::kNotAhead);
        if (take("(?")) unsupported("this group: (?");
        if (take("(")) return group(any_case, depth);
        if (take("$")) return {Node::kLineEnd, {}, {}};
        Node node{Node::kOne, {}, {}};
        if (take("[")) {
            node.members = members(any_case);
        } else if (take(".")) {
            node.members.ranges.emplace_back('\n', '\n');
            node.members.negated = true;
        } else {
            if (std::strchr("^*+?{}]", *at_)) unsupported("an operator in this place");
            if (!take_set(node.members)) add_character(node.members, character(), any_case);
        }
        return node;
    }

    // Reads an escape for a set of characters; false if the next character stands for one character.
    bool take_set(Members& into) {
        if (take("\\s")) into.categories |= kSpace;
        else if (take("\\S")) into.categories |= kAll & ~kSpace;
        else if (take("\\d")) into.categories |= kDigit;
        else if (take("\\D")) into.categories |= kAll & ~kDigit;
        else if (take("\\p{")) into.categories |= property();
        else return false;
        return true;
    }

    CharSet property() {
        for (const auto& known : kProperties)
            if (take(known.name + std::string("}"))) return known.categories;
        unsupported("an unknown property");
    }

    // Reads one character, which may be escaped.
    uint32_t character() {
        if (!take("\\")) return next();
        const uint32_t code = next();
        if (code == 'r') return '\r';
        if (code == 'n') return '\n';
        if (code == 't') return '\t';
        if (is_letter(code) || (code >= '0' && code <= '9') || code >= 0x80) unsupported("an unknown escape");
        return code;
    }

    void add_character(Members& into, uint32_t code, bool any_case) {
        into.ranges.emplace_back(code, code);
        if (!any_case) return;
        if (code >= 0x80) unsupported("characters beyond ASCII where case is ignored");
        if (!is_letter(code)) return;
        into.ranges.emplace_back(code ^ 0x20, code ^ 0x20);
        if ((code | 0x20) == 's') into.ranges.emplace_back(0x17F, 0x17F);    // the long s
        if ((code | 0x20) == 'k') into.ranges.emplace_back(0x212A, 0x212A);  // the kelvin sign
    }

    Members members(bool any_case) {
        Members found;
        found.negated = take("^");
        do {
            if (take("[") || take("&&")) unsupported("a class inside a class");
            if (take_set(found)) continue;
            const uint32_t first = character();
            if (end_ - at_ < 2 || *at_ != '-' || at_[1] == ']') {
                add_character(found, first, any_case);
                continue;
            }
            at_++;
            if (any_case || *at_ == '[') unsupported("this range");
            Members none;
            if (take_set(none)) unsupported("a range that ends in a class");
            const uint32_t last = character();
            if (last < first) unsupported("a range that ends before it begins");
            found.ranges.emplace_back(first, last);
        } while (!take("]"));
        return found;
    }

    Node repeated(Node part) {
        uint32_t least = 1, most = 1;
        if (take("*")) least = 0, most = kNoLimit;
        else if (take("+")) most = kNoLimit;
        else if (take("?")) least = 0;
        else if (take("{")) {
            least = most = count();
            if (take(",")) most = at_ < end_ && *at_ == '}' ? kNoLimit : count();
            if (!take("}") || most < least) unsupported("this repetition");
            if (at_ < end_ && *at_ == '+') unsupported("a repeated repetition");
        } else {
            return part;
        }
        if (part.kind != Node::kOne && part.kind != Node::kChoice) unsupported("a repetition of a condition");
        Node node{Node::kRepeat, {}, {}, least, most, take("+")};
        if (at_ < end_ && std::strchr("*+?{", *at_)) unsupported("a repeated repetition");
        node.parts.push_back(std::move(part));
        return node;
    }

    uint32_t count() {
        uint32_t value = 0;
        const char* first = at_;
        for (; at_ < end_ && *at_ >= '0' && *at_ <= '9' && value < kMostRepeats; at_++)
            value = value * 10 + uint32_t(*at_ - '0');
        if (at_ == first || value >= kMostRepeats) unsupported("this repetition");
        return value;
    }

    const char *at_, *end_;
};

}  // namespace

Node parse_expression(std::string_view pattern) { return Parser(pattern).whole(); }

}  // namespace fb::text
