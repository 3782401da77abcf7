#include <array>

#include "text/cuts.h"
#include "text/encoder.h"
#include "text/merges.h"
#include "text/normalize.h"
#include "text/utf8.h"

namespace fb::text {
namespace {

// GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and following.
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
    std::array<int16_t, 0x144> bytes;  // -1: not a letter of the alphabet
};

const Alphabet& alphabet() {
    static const Alphabet made;
    return made;
}

class ByteLevel : public Encoder {
public:
    ByteLevel(Tokens given, StringReader merges, uint32_t n_merges, const ByteLevelOptions& options)
        : Encoder(std::move(given)),
          index_(all(tokens())),
          merges_(merges, n_merges, index_),
          composes_(options.composes),
          whole_words_(options.whole_words) {
        for (const std::string& expression : options.cuts) cuts_.push_back(make_cut(expression));
        for (int b = 0; b < 256; b++) bytes_[size_t(b)] = index_.find(alphabet().letters[size_t(b)]);
        if (!whole_words_) index_ = TokenIndex();  // only building the merges needed it
    }

    std::string decode(const std::vector<int64_t>& ids) const override {
        std::string out;
        for (const int64_t id : ids)
            if (id >= 0 && id < int64_t(tokens().size())) out += bytes(uint32_t(id));
        return out;
    }

    std::string bytes(uint32_t id) const override {
        std::string found;
        const std::string_view token = tokens()[id];
        return spelled(token, found) ? found : std::string(token);
    }

protected:
    std::string_view normalize(std::string_view text, std::string& held, std::vector<uint32_t>& origin) const override {
        if (!composes_ || !needs_composing(text)) return text;
        to_composed(text, held, origin);
        return held;
    }

    void encode_normal(std::string_view text, Scratch& scratch, Pieces& out) const override {
        cut(text, cuts_.data(), cuts_.size(), [&](std::string_view word) {
            if (scratch.cache.find(word, out)) return;
            const size_t first = out.size();
            encode_word(word, scratch, out);
            scratch.cache.add(word, out, first);
        });
    }

private:
    static TokenIndex all(const Tokens& tokens) {
        TokenIndex index(tokens);
        for (uint32_t id = 0; id < tokens.size(); id++) index.add(id);
        return index;
    }

    // Returns the bytes that a token in the alphabet spells; false if it contains another character.
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

    void encode_word(std::string_view word, Scratch& scratch, Pieces& out) const {
        if (whole_words_ && word.size() <= tokens().longest()) {
            scratch.letters.clear();
            for (const char byte : word) scratch.letters += alphabet().letters[uint8_t(byte)];
            const uint32_t id = index_.find(scratch.letters);
            // Text that spells a control token must not become that token.
            if (id != kNone && tokens().type(id) != kControl && tokens().type(id) != kUnknown)
                return out.push_back({id, uint32_t(word.size())});
        }
        // Bytes without a token are removed before merging; the previous token covers their text.
        uint32_t leading = 0;
        while (leading < word.size() && token_of(word[leading]) == kNone) leading++;
        if (leading) out.push_back({kNone, leading});
        word.remove_prefix(leading);
        scratch.merger.begin();
        for (const char byte : word) {
            if (token_of(byte) == kNone) scratch.merger.extend(1);
            else scratch.merger.add(token_of(byte), 1);
        }
        scratch.merger.merge(word, merges_, out);
    }

    TokenIndex index_;
    MergeTable merges_;
    std::array<uint32_t, 256> bytes_;  // the tokens of single bytes
    std::vector<Cut> cuts_;
    bool composes_, whole_words_;
};

}  // namespace

std::unique_ptr<Encoder> make_byte_level(Tokens tokens, StringReader merges, uint32_t n_merges,
                                         const ByteLevelOptions& options) {
    return std::make_unique<ByteLevel>(std::move(tokens), merges, n_merges, options);
}

}  // namespace fb::text
