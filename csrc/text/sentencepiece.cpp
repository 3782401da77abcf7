#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "text/encoder.h"
#include "text/merges.h"
#include "text/utf8.h"

namespace fb::text {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";  // a space in a piece

// Appends the text of a token, with spaces in place of marks.
void append_spaced(std::string_view token, std::string& out) {
    for (size_t at = 0; at < token.size();) {
        const bool space = token.substr(at, kSpaceMark.size()) == kSpaceMark;
        out += space ? ' ' : token[at];
        at += space ? kSpaceMark.size() : 1;
    }
}

// The byte of a token "<0x0A>", or -1 if it does not have this form.
int spelled_byte(std::string_view token) {
    const auto digit = [](char c) {
        if (c >= '0' && c <= '9') return c - '0';
        if (c >= 'A' && c <= 'F') return c - 'A' + 10;
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    };
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
    const int high = digit(token[3]), low = digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// The pairs of characters that occur next to each other inside a piece. Text can be cut between two characters that
// never do, because nothing is merged there. Pairs may share bits by chance, which only means fewer cuts.
class Neighbours {
public:
    void add(uint32_t left, uint32_t right) { bits_[bit(left, right) / 64] |= uint64_t(1) << bit(left, right) % 64; }
    bool may(uint32_t left, uint32_t right) const { return bits_[bit(left, right) / 64] >> bit(left, right) % 64 & 1; }

private:
    static constexpr int kLogBits = 20;
    static size_t bit(uint32_t left, uint32_t right) {
        return size_t(((uint64_t(left) << 32 | right) * 0x9E3779B97F4A7C15) >> (64 - kLogBits));
    }
    std::vector<uint64_t> bits_ = std::vector<uint64_t>((size_t(1) << kLogBits) / 64);
};

class SentencePiece : public Encoder {
public:
    SentencePiece(Tokens given, StringReader merges, uint32_t n_merges, SentencePieceOptions options)
        : Encoder(std::move(given)),
          index_(tokens()),
          scores_(std::move(options.scores)),
          strips_space_(options.strips_space) {
        const Tokens& all = tokens();
        if (!options.by_merges && scores_.size() != all.size())
            throw std::invalid_argument("tokens and scores differ in number");
        byte_tokens_.fill(kNone);
        const auto preference = [](uint8_t type) { return type == kNormal ? 2 : is_text(type) ? 1 : 0; };
        for (const int preferred : {0, 1, 2})  // of tokens with equal text, the last one added counts
            for (uint32_t id = 0; id < all.size(); id++)
                if (preference(all.type(id)) == preferred) index_.add(id);
        for (uint32_t id = 0; id < all.size(); id++) {
            if (!scores_.empty() && std::isnan(scores_[id]))
                throw std::invalid_argument("token " + std::to_string(id) + "'s score is NaN");
            if (all.type(id) == kUnknown && unknown_ == kNone) unknown_ = id;
            if (const int byte = all.type(id) == kByte ? spelled_byte(all[id]) : -1; byte >= 0)
                byte_tokens_[size_t(byte)] = id;
            if (options.by_merges ? is_text(all.type(id)) : all.type(id) == kNormal) add_neighbours(all[id]);
        }
        if (options.by_merges) merges_.emplace(merges, n_merges, index_);
    }

    std::string decode(const std::vector<int64_t>& ids) const override {
        std::string out, bytes;
        const auto flush = [&] {  // bytes that are not whole characters become replacement characters, one each
            if (is_valid(bytes)) out += bytes;
            else
                for (size_t i = 0; i < bytes.size(); i++) append(out, 0xFFFD);
            bytes.clear();
        };
        for (const int64_t id : ids) {
            if (id < 0 || id >= int64_t(tokens().size())) continue;
            const std::string_view token = tokens()[uint32_t(id)];
            if (const int byte = spelled_byte(token); byte >= 0) {
                bytes += char(byte);
                continue;
            }
            flush();
            append_spaced(token, out);
        }
        flush();
        return out.substr(strips_space_ && !out.empty() && out[0] == ' ');
    }

    std::string bytes(uint32_t id) const override {
        const std::string_view token = tokens()[id];
        if (const int byte = spelled_byte(token); byte >= 0) return std::string(1, char(byte));
        std::string out;
        append_spaced(token, out);
        return out;
    }

    // Finds the piece of the union, if there is one; for Merger.
    bool join(uint32_t left, uint32_t right, std::string_view whole, Join& join) const {
        if (!joins(left) || !joins(right)) return false;
        const uint32_t id = index_.find(whole);
        if (!joins(id)) return false;
        join = {falling(scores_[id]), id};
        return true;
    }

protected:
    std::string_view normalize(std::string_view text, std::string& held, std::vector<uint32_t>&) const override {
        held.reserve(text.size());
        for (const char c : text) {
            if (c == ' ') held += kSpaceMark;
            else held += c;
        }
        return held;
    }

    void encode_normal(std::string_view text, Scratch& scratch, Pieces& out) const override {
        const char *begin = text.data(), *end = begin + text.size();
        while (begin < end) {
            Char left = read_char(begin, end);
            const char* at = begin + left.bytes;
            while (at < end) {
                const Char right = read_char(at, end);
                if (!neighbours_.may(left.code, right.code)) break;
                at += right.bytes;
                left = right;
            }
            encode_stretch({begin, size_t(at - begin)}, scratch, out);
            begin = at;
        }
    }

private:
    struct ByMerges {
        const SentencePiece& self;
        bool join(uint32_t left, uint32_t right, std::string_view whole, Join& join) const {
            return self.merges_->join(left, right, whole, join) && is_text(self.tokens().type(join.id));
        }
    };
    static bool is_text(uint8_t type) { return type != kUnknown && type != kControl && type != kByte; }
    // Only normal pieces are merged, because text that spells another token must not become it.
    bool joins(uint32_t id) const { return id < tokens().size() && tokens().type(id) == kNormal; }

    // Maps a score to a number that falls as the score rises.
    static uint32_t falling(float score) {
        uint32_t bits;
        score += 0.0f;  // turns -0 into 0
        std::memcpy(&bits, &score, sizeof bits);
        return bits >> 31 ? bits : ~bits & 0x7FFFFFFF;
    }

    void add_neighbours(std::string_view piece) {
        const char *at = piece.data(), *end = at + piece.size();
        if (at == end) return;
        for (Char left = read_char(at, end); (at += left.bytes) < end;) {
            const Char right = read_char(at, end);
            neighbours_.add(left.code, right.code);
            left = right;
        }
    }

    void encode_stretch(std::string_view text, Scratch& scratch, Pieces& out) const {
        Pieces& stretch = scratch.stretch;
        if (!scratch.cache.find(text, stretch)) {
            scratch.merger.begin();
            for (const char *at = text.data(), *end = at + text.size(); at < end;) {
                const uint32_t bytes = read_char(at, end).bytes;
                add_character({at, bytes}, scratch.merger);
                at += bytes;
            }
            if (merges_) scratch.merger.merge(text, ByMerges{*this}, stretch);
            else scratch.merger.merge(text, *this, stretch);
            scratch.cache.add(text, stretch, 0);
        }
        for (const Piece& piece : stretch) {
            if (piece.id == unknown_ && !out.empty() && out.back().id == unknown_) out.back().bytes += piece.bytes;
            else out.push_back(piece);
        }
        stretch.clear();
    }

    void add_character(std::string_view character, Merger& merger) const {
        const uint32_t bytes = uint32_t(character.size());
        const uint32_t found = index_.find(character);
        const uint32_t id = found != kNone && is_text(tokens().type(found)) ? found : kNone;
        bool has_bytes = id == kNone;
        if (has_bytes)
            for (const char byte : character) has_bytes = has_bytes && byte_tokens_[uint8_t(byte)] != kNone;
        if (has_bytes)
            for (const char byte : character) merger.add(byte_tokens_[uint8_t(byte)], 1);
        else merger.add(id == kNone ? unknown_ : id, bytes);
    }

    TokenIndex index_;
    std::vector<float> scores_;
    Neighbours neighbours_;
    std::array<uint32_t, 256> byte_tokens_;
    uint32_t unknown_ = kNone;
    std::optional<MergeTable> merges_;
    bool strips_space_;
};

}  // namespace

std::unique_ptr<Encoder> make_sentencepiece(Tokens tokens, StringReader merges, uint32_t n_merges,
                                            SentencePieceOptions options) {
    return std::make_unique<SentencePiece>(std::move(tokens), merges, n_merges, std::move(options));
}

}  // namespace fb::text
