#include "text/encoder.h"

#include <stdexcept>

#include "text/utf8.h"

namespace fb::text {

std::vector<uint32_t> Encoder::encode(std::string_view text, std::vector<Span>* spans) {
    constexpr size_t kMost = size_t(1) << 30;  // of UTF-8, so that places fit 32 bits
    if (text.size() > kMost) throw std::invalid_argument("a text of over 1 GB; divide it");
    std::string held;
    std::vector<uint32_t> origin;
    text = normalize(text, held, origin);
    Pieces pieces;
    pieces.reserve(text.size() / 4);
    encode_normal(text, pieces);
    std::vector<uint32_t> ids;
    ids.reserve(pieces.size());
    if (spans) spans->reserve(pieces.size());
    const char* at = text.data();
    uint32_t chars = 0;  // that begin before `at`
    for (const Piece& piece : pieces) {
        if (spans) {
            const uint32_t first = chars - (piece.bytes && is_continuation(*at));
            for (const char* end = at + piece.bytes; at < end; at++) chars += !is_continuation(*at);
            if (piece.id != kNone)
                spans->push_back(origin.empty() ? Span{first, chars} : Span{origin[first], origin[chars - 1] + 1});
        }
        if (piece.id != kNone) ids.push_back(piece.id);
    }
    return ids;
}

}  // namespace fb::text
