// Pre-tokenizers: they cut text before anything is merged.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace fb::text {

// The end of the first piece of a non-empty text: a match of the expression, or the text before the next match.
using Cut = std::function<const char*(const char* begin, const char* end)>;

// Makes a cut by a regular expression. Throws std::invalid_argument if the expression is not supported.
Cut make_cut(const std::string& expression);

// Calls `piece` with each piece of the text, after cutting by each expression in turn.
template <class Piece>
void cut(std::string_view text, const Cut* cuts, size_t count, const Piece& piece) {
    if (!count) return piece(text);
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
        const char* next = cuts[0](at, end);
        cut(std::string_view(at, size_t(next - at)), cuts + 1, count - 1, piece);
        at = next;
    }
}

}  // namespace fb::text
