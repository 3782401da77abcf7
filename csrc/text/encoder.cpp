#include "text/encoder.h"

#include <algorithm>
#include <stdexcept>

#include "text/utf8.h"

namespace fb::text {

void Encoder::encode(std::string_view text, const std::vector<Part>& parts, std::vector<uint32_t>& ids,
                     std::vector<Span>* spans) const {
    constexpr size_t kMost = size_t(1) << 30;  // bytes of UTF-8, so that places fit into 32 bits
    if (text.size() > kMost) throw std::invalid_argument("a text of over 1 GB at once; divide it");
    std::unique_ptr<Scratch> scratch;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!idle_.empty()) {
            scratch = std::move(idle_.back());
            idle_.pop_back();
        }
    }
    if (!scratch) scratch = std::make_unique<Scratch>();
    ids.reserve(text.size() / 4 + parts.size());
    if (spans) spans->reserve(text.size() / 4 + parts.size());
    const char *at = text.data(), *end = at + text.size();
    uint32_t chars = 0;  // number of characters before `at`
    const auto go_to = [&](uint32_t place) {
        while (chars < place && at < end) at += read_char(at, end).bytes, chars++;
        if (chars != place) throw std::invalid_argument("a part of the text lies outside it, or before the last one");
    };
    for (const Part& part : parts) {
        go_to(part.begin);
        const char* begin = at;
        go_to(part.end);
        if (part.token == kNone) {
            encode_plain({begin, size_t(at - begin)}, part, *scratch, ids, spans);
        } else {
            ids.push_back(part.token);
            if (spans) spans->push_back({part.begin, part.end});
        }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(scratch));
}

void Encoder::encode_plain(std::string_view text, const Part& part, Scratch& scratch, std::vector<uint32_t>& ids,
                           std::vector<Span>* spans) const {
    if (part.spaced) text = scratch.spaced.assign(1, ' ').append(text);
    scratch.held.clear();
    scratch.origin.clear();
    text = normalize(text, scratch.held, scratch.origin);
    scratch.pieces.clear();
    encode_normal(text, scratch, scratch.pieces);
    const std::vector<uint32_t>& origin = scratch.origin;
    const char* at = text.data();
    uint32_t chars = 0;  // number of characters before `at`
    const auto place = [&](uint32_t c) { return part.begin + std::max(c, uint32_t(part.spaced)) - part.spaced; };
    for (const Piece& piece : scratch.pieces) {
        if (spans) {
            const uint32_t first = chars - (piece.bytes && is_continuation(*at));
            for (const char* end = at + piece.bytes; at < end; at++) chars += !is_continuation(*at);
            if (piece.id != kNone) {
                const Span span = origin.empty() ? Span{first, chars} : Span{origin[first], origin[chars - 1] + 1};
                spans->push_back({place(span.begin), place(span.end)});
            }
        }
        if (piece.id != kNone) ids.push_back(piece.id);
    }
    constexpr size_t kKept = size_t(1) << 16;  // the memory for a longer text is not kept
    if (scratch.pieces.capacity() > kKept) Pieces().swap(scratch.pieces);
    if (scratch.held.capacity() > kKept) std::string().swap(scratch.held);
    if (scratch.spaced.capacity() > kKept) std::string().swap(scratch.spaced);
    if (scratch.origin.capacity() > kKept) std::vector<uint32_t>().swap(scratch.origin);
}

}  // namespace fb::text
