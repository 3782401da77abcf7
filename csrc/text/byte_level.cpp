#include <array>
#include <stdexcept>

#include "text/cuts.h"
#include "text/encoder.h"
#include "text/merging.h"
#include "text/normalize.h"
#include "text/utf8.h"

namespace fb::text {
namespace {

// GPT-2's alphabet: bytes that print stand for themselves, the others are U+0100 and on.
struct Alphabet {
    Alphabet() {
        uint32_t other = 0x100;
        bytes.fill(-1);
        for (uint32_t b = 0; b < 256; b++) {
            const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
            const uint32_t code = prints ? b : other++;
            append(letters[b], code);
            bytes[code] = int16_t(b);
        }
    }
    std::array<std::string, 256> letters;
    std::array<int16_t, 0x144> bytes;  // -1: no letter
};

const Alphabet& alphabet() {
    static const Alphabet made;
    return made;
}

// What two tokens become, and when.
class MergeTable {
public:
    MergeTable(StringReader reader, uint32_t count, const TokenIndex& index) : slots_(table_size(count), kNone) {
        left_.reserve(count);
        right_.reserve(count);
        whole_.reserve(count);
        std::string joined;
        for (uint32_t rank = 0; rank < count; rank++) {
            const std::string_view merge = reader.next();
            const size_t space = merge.find(' ');
            const std::string_view left = merge.substr(0, space);
            const std::string_view right = space == merge.npos ? std::string_view() : merge.substr(space + 1);
            joined.assign(left).append(right);
            left_.push_back(index.find(left));
            right_.push_back(index.find(right));
            whole_.push_back(index.find(joined));
            if (left.empty() || right.empty() || left_[rank] == kNone || right_[rank] == kNone || whole_[rank] == kNone)
                throw std::invalid_argument("merge " + std::to_string(rank) + " joins what is not in the vocabulary");
            slots_[slot(left_[rank], right_[rank])] = rank;  // of equal merges, the last counts
        }
    }
    bool join(uint32_t left, uint32_t right, std::string_view, Join& join) const {
        const uint32_t rank = slots_[slot(left, right)];
        if (rank == kNone) return false;
        join = {rank, whole_[rank]};
        return true;
    }

private:
    size_t slot(uint32_t left, uint32_t right) const {
        const size_t mask = slots_.size() - 1;
        const uint64_t mixed = (uint64_t(left) << 32 | right) * 0x9E3779B97F4A7C15;
        size_t at = (mixed >> 32 ^ mixed >> 15) & mask;
        while (slots_[at] != kNone && (left_[slots_[at]] != left || right_[slots_[at]] != right)) at = (at + 1) & mask;
        return at;
    }
    std::vector<uint32_t> slots_;  // ranks
    std::vector<uint32_t> left_, right_, whole_;
};

class ByteLevel : public Encoder {
public:
    ByteLevel(Tokens given, StringReader merges, uint32_t n_merges, const ByteLevelOptions& options)
        : Encoder(std::move(given)),
          index_(all(tokens())),
          merges_(merges, n_merges, index_),
          composes_(options.composes),
          whole_words_(options.whole_words) {
        for (const std::string& name : options.cuts) cuts_.push_back(find_cut(name));
        for (int b = 0; b < 256; b++) bytes_[size_t(b)] = index_.find(alphabet().letters[size_t(b)]);
        if (!whole_words_) index_ = TokenIndex();  // only the merges needed it
    }

    std::string decode(const std::vector<int64_t>& ids) const override {
        std::string out, bytes;
        for (const int64_t id : ids) {
            if (id < 0 || id >= int64_t(tokens().size())) continue;
            const std::string_view token = tokens()[uint32_t(id)];
            out += spelled(token, bytes) ? std::string_view(bytes) : token;
        }
        return out;
    }

protected:
    std::string_view normalize(std::string_view text, std::string& held, std::vector<uint32_t>& origin) override {
        if (!composes_ || !needs_composing(text)) return text;
        to_composed(text, held, origin);
        return held;
    }

    void encode_normal(std::string_view text, Pieces& out) override {
        cut(text, cuts_.data(), cuts_.size(), [&](std::string_view word) {
            if (cache_.find(word, out)) return;
            const size_t first = out.size();
            encode_word(word, out);
            cache_.add(word, out, first);
        });
    }

private:
    static TokenIndex all(const Tokens& tokens) {
        TokenIndex index(tokens);
        for (uint32_t id = 0; id < tokens.size(); id++) index.add(id);
        return index;
    }

    // The bytes that a token of the alphabet's letters spells; false if there is another character in it.
    static bool spelled(std::string_view token, std::string& bytes) {
        bytes.clear();
        for (const char *at = token.data(), *end = at + token.size(); at < end;) {
            const Char c = read_char(at, end);
            if (c.code >= alphabet().bytes.size() || alphabet().bytes[c.code] < 0) return false;
            bytes += char(alphabet().bytes[c.code]);
            at += c.bytes;
        }
        return true;
    }

    uint32_t token_of(char byte) const { return bytes_[uint8_t(byte)]; }

    void encode_word(std::string_view word, Pieces& out) {
        if (whole_words_ && word.size() <= tokens().longest()) {
            letters_.clear();
            for (const char byte : word) letters_ += alphabet().letters[uint8_t(byte)];
            const uint32_t id = index_.find(letters_);
            // Text that spells a control token must not become it.
            if (id != kNone && tokens().type(id) != kControl && tokens().type(id) != kUnknown)
                return out.push_back({id, uint32_t(word.size())});
        }
        // Bytes without a token are left out before anything is joined; the token before them covers their text.
        uint32_t leading = 0;
        while (leading < word.size() && token_of(word[leading]) == kNone) leading++;
        if (leading) out.push_back({kNone, leading});
        word.remove_prefix(leading);
        merger_.begin();
        for (const char byte : word) {
            if (token_of(byte) == kNone) merger_.extend(1);
            else merger_.add(token_of(byte), 1);
        }
        merger_.merge(word, merges_, out);
    }

    TokenIndex index_;
    MergeTable merges_;
    std::array<uint32_t, 256> bytes_;  // their tokens
    std::vector<Cut> cuts_;
    bool composes_, whole_words_;
    Merger merger_;
    WordCache cache_;
    std::string letters_;
};

}  // namespace

std::unique_ptr<Encoder> make_byte_level(Tokens tokens, StringReader merges, uint32_t n_merges,
                                         const ByteLevelOptions& options) {
    return std::make_unique<ByteLevel>(std::move(tokens), merges, n_merges, options);
}

}  // namespace fb::text
