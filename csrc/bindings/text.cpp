#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "bindings/arrays.h"
#include "host/system.h"
#include "text/cuts.h"
#include "text/encoder.h"
#include "text/finder.h"
#include "text/json_vocabulary.h"
#include "text/utf8.h"

namespace fb {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using StringArray = std::pair<int64_t, int64_t>;  // where in the file the first one is, and how many there are

// The UTF-8 of a Python string, without leaving a copy in the string. Raises UnicodeEncodeError for a lone surrogate.
class Utf8 {
public:
    explicit Utf8(nb::str text) : bytes_(nb::steal(PyUnicode_AsUTF8String(text.ptr()))) {
        if (!bytes_) throw nb::python_error();
    }
    std::string_view view() const { return {PyBytes_AsString(bytes_.ptr()), size_t(PyBytes_Size(bytes_.ptr()))}; }

private:
    nb::object bytes_;
};

nb::str as_text(std::string_view bytes) {
    PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), Py_ssize_t(bytes.size()), "replace");
    if (!text) throw nb::python_error();
    return nb::steal<nb::str>(text);
}

// Makes a list, item by item.
template <class Item>
nb::list make_list(size_t count, const Item& item) {
    nb::list list = nb::steal<nb::list>(PyList_New(Py_ssize_t(count)));
    if (!list.ptr()) throw nb::python_error();
    for (size_t i = 0; i < count; i++) PyList_SetItem(list.ptr(), Py_ssize_t(i), item(i).release().ptr());
    return list;
}

// An encoder and the mapped file that it reads.
struct PyEncoder {
    nb::object file;
    std::unique_ptr<text::Encoder> encoder;
};

// For tokens or merges: more than any model has, so that a damaged file cannot exhaust memory.
void check_count(int64_t count, int64_t least, const char* what) {
    constexpr int64_t kMost = 1 << 22;
    if (count < least || count > kMost) refuse(std::to_string(count) + " " + what);
}

struct File {
    explicit File(const Bytes& bytes)
        : begin(reinterpret_cast<const char*>(bytes.data())), end(begin + bytes.shape(0)) {}
    const char* at(int64_t offset) const {
        if (offset < 0 || offset > end - begin) refuse("the strings begin outside the file");
        return begin + offset;
    }
    const char *begin, *end;
};

text::Tokens read_tokens(const File& file, StringArray tokens, const Ints& types) {
    const int64_t count = tokens.second;
    check_count(count, 1, "tokens");
    std::vector<uint8_t> kinds(types.shape(0));
    for (size_t i = 0; i < kinds.size(); i++) {
        const int32_t type = types.data()[i];
        kinds[i] = type >= 0 && type < 256 ? uint8_t(type) : 0;
    }
    return {file.at(tokens.first), file.end, uint32_t(count), std::move(kinds)};
}

// The strings of `array` in `other`, or in `file` if `other` is None.
text::StringReader read_strings(const File& file, const std::optional<Bytes>& other, StringArray array) {
    const File where = other ? File(*other) : file;
    return {where.at(array.first), where.end};
}

PyEncoder byte_level(nb::object data, StringArray tokens, Ints types, StringArray merges, std::vector<std::string> cuts,
                     bool composes, bool whole_words, std::optional<Bytes> merges_file) {
    const File file(nb::cast<Bytes>(data));
    check_count(merges.second, 0, "merges");
    text::Tokens vocabulary = read_tokens(file, tokens, types);
    return {data, text::make_byte_level(std::move(vocabulary), read_strings(file, merges_file, merges),
                                        uint32_t(merges.second), {std::move(cuts), composes, whole_words})};
}

PyEncoder sentencepiece(nb::object data, StringArray tokens, Ints types, std::optional<InFloats> scores,
                        StringArray merges, bool strips_space, std::optional<Bytes> merges_file) {
    const File file(nb::cast<Bytes>(data));
    check_count(merges.second, 0, "merges");
    text::SentencePieceOptions options{{}, !scores, strips_space};
    if (scores) options.scores.assign(scores->data(), scores->data() + scores->shape(0));
    return {data, text::make_sentencepiece(read_tokens(file, tokens, types), read_strings(file, merges_file, merges),
                                           uint32_t(merges.second), std::move(options))};
}

// The numbers of the strings among `wanted`, in their order.
nb::list find_strings(const Bytes& data, StringArray strings, const std::vector<std::string>& wanted) {
    check_count(strings.second, 0, "strings");
    const File file(data);
    text::StringReader reader(file.at(strings.first), file.end);
    std::vector<std::pair<int64_t, std::string_view>> found;
    size_t longest = 0;
    for (const std::string& name : wanted) longest = std::max(longest, name.size());
    for (int64_t i = 0; i < strings.second; i++) {
        const std::string_view each = reader.next();
        if (each.size() <= longest && std::find(wanted.begin(), wanted.end(), each) != wanted.end())
            found.emplace_back(i, each);
    }
    return make_list(found.size(), [&](size_t i) { return nb::make_tuple(found[i].first, as_text(found[i].second)); });
}

using Ids = nb::ndarray<nb::numpy, uint32_t, nb::shape<-1>>;
using Offsets = nb::ndarray<nb::numpy, uint32_t, nb::shape<-1, 2>>;

// Returns an array that owns the vector's memory.
template <class Array, class Item>
Array as_array(std::unique_ptr<std::vector<Item>> items, std::initializer_list<size_t> shape) {
    void* data = items->data();
    const nb::capsule owner(items.release(), [](void* p) noexcept { delete static_cast<std::vector<Item>*>(p); });
    return Array(data, shape, owner);
}

constexpr int64_t kPlain = -1, kSpaced = -2;

std::pair<Ids, std::optional<Offsets>> encode(const PyEncoder& self, nb::str text,
                                              const std::vector<std::tuple<int64_t, uint32_t, uint32_t>>& parts,
                                              bool places) {
    std::vector<text::Part> found;
    found.reserve(parts.size());
    for (const auto& [token, begin, end] : parts) {
        if (token < kSpaced || token >= int64_t(text::kNone)) refuse("no such token");
        found.push_back({token < 0 ? text::kNone : uint32_t(token), begin, end, token == kSpaced});
    }
    const Utf8 utf8(text);
    auto ids = std::make_unique<std::vector<uint32_t>>();
    auto spans = std::make_unique<std::vector<text::Span>>();
    {
        const nb::gil_scoped_release others_may_run;
        self.encoder->encode(utf8.view(), found, *ids, places ? spans.get() : nullptr);
    }
    static_assert(sizeof(text::Span) == 2 * sizeof(uint32_t));
    const size_t count = ids->size();
    std::optional<Offsets> offsets;
    if (places) offsets = as_array<Offsets>(std::move(spans), {count, 2});
    return {as_array<Ids>(std::move(ids), {count}), offsets};
}

// Reads the file open at this descriptor, from its current position.
text::JsonVocabulary read_vocabulary(int descriptor) {
    return text::JsonVocabulary([descriptor](char* into, size_t size) {
        for (;;) {
            const int64_t count = read_next(descriptor, into, size);
            if (count >= 0) return size_t(count);
            if (errno != EINTR) throw std::system_error(errno, std::generic_category());
        }
    });
}

nb::bytes as_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::bytes token_bytes(const PyEncoder& self, int64_t id) {
    if (id < 0 || id >= int64_t(self.encoder->tokens().size())) throw nb::index_error("no such token");
    return as_bytes(self.encoder->bytes(uint32_t(id)));
}

nb::list cut_text(nb::str text, const std::vector<std::string>& expressions) {
    std::vector<text::Cut> cuts;
    for (const std::string& expression : expressions) cuts.push_back(text::make_cut(expression));
    std::vector<std::string_view> pieces;
    const Utf8 utf8(text);
    text::cut(utf8.view(), cuts.data(), cuts.size(), [&](std::string_view piece) { pieces.push_back(piece); });
    return make_list(pieces.size(), [&](size_t i) { return as_text(pieces[i]); });
}

nb::list find(const text::NameFinder& self, nb::str text) {
    const Utf8 utf8(text);
    std::vector<text::NameFinder::Hit> hits;
    {
        const nb::gil_scoped_release others_may_run;
        hits = self.find(utf8.view());
    }
    return make_list(hits.size(), [&](size_t i) { return nb::make_tuple(hits[i].name, hits[i].begin, hits[i].end); });
}

}  // namespace

void bind_text(nb::module_& m) {
    nb::class_<PyEncoder>(m, "TextEncoder", "Plain text to tokens and back: no special tokens, no leading space.")
        .def_prop_ro("n_vocab", [](const PyEncoder& self) { return self.encoder->tokens().size(); })
        .def(
            "token",
            [](const PyEncoder& self, int64_t id) {
                if (id < 0 || id >= int64_t(self.encoder->tokens().size())) throw nb::index_error("no such token");
                return as_text(self.encoder->tokens()[uint32_t(id)]);
            },
            nb::arg("id"), "A token as the vocabulary spells it")
        .def("encode", &encode, nb::arg("text"), nb::arg("parts"), nb::arg("places"),
             "Tokens, and with `places` the half-open range of characters that each stands for, (n, 2). `parts` of the "
             "text, one after another: (token, begin, end), the token PLAIN for text to encode, SPACED for such with a "
             "space before it that is no part of the text. Other threads run meanwhile.")
        .def("token_bytes", &token_bytes, nb::arg("id"), "The bytes that a token stands for inside a text")
        .def(
            "decode",
            [](const PyEncoder& self, const std::vector<int64_t>& ids) { return as_text(self.encoder->decode(ids)); },
            nb::arg("ids"));
    m.attr("PLAIN") = kPlain;
    m.attr("SPACED") = kSpaced;
    m.def(
        "byte_level_encoder", &byte_level, nb::arg("file"), nb::arg("tokens"), nb::arg("types"), nb::arg("merges"),
        nb::arg("cuts"), nb::arg("composes"), nb::arg("whole_words"), nb::arg("merges_file") = nb::none(),
        "Byte-level BPE over strings as a GGUF file holds them, given as (offset, count) in `file`; the merges may be "
        "in another, which is not kept");
    m.def("sentencepiece_encoder", &sentencepiece, nb::arg("file"), nb::arg("tokens"), nb::arg("types"),
          nb::arg("scores").none(), nb::arg("merges") = StringArray(0, 0), nb::arg("strips_space") = true,
          nb::arg("merges_file") = nb::none(),
          "SentencePiece BPE likewise, by the pieces' scores or, if these are None, by merges. `strips_space`: decoded "
          "text loses a leading space");
    nb::class_<text::JsonVocabulary>(m, "JsonVocabulary", "The vocabulary of a tokenizer.json")
        .def_prop_ro(
            "facts", [](const text::JsonVocabulary& self) { return as_bytes(self.facts()); },
            "The file's JSON with null in place of its tables of tokens and merges")
        .def_prop_ro("size", &text::JsonVocabulary::size, "One more than the highest number of a token")
        .def_prop_ro("n_merges", &text::JsonVocabulary::n_merges)
        .def(
            "add", [](text::JsonVocabulary& self, uint32_t id, nb::str text) { self.add(id, Utf8(text).view()); },
            nb::arg("id"), nb::arg("text"), "Give a number its text")
        .def("find", &text::JsonVocabulary::find, nb::arg("texts"), "The number of each text, -1 if there is none")
        .def_prop_ro(
            "tokens", [](const text::JsonVocabulary& self) { return as_bytes(self.tokens()); },
            "Tokens by number, as GGUF files hold strings; one that is missing is empty")
        .def_prop_ro(
            "merges", [](const text::JsonVocabulary& self) { return as_bytes(self.merges()); },
            "Merges by rank, likewise");
    m.def("read_vocabulary", &read_vocabulary, nb::arg("descriptor"),
          "Read a tokenizer.json; ValueError if it is not JSON or not a vocabulary");
    m.def("find_strings", &find_strings, nb::arg("file"), nb::arg("strings"), nb::arg("wanted"),
          "(number, text) of each of the strings, (offset, count) in `file`, that is one of `wanted`");
    m.def("cut_text", &cut_text, nb::arg("text"), nb::arg("cuts"),
          nb::sig("def cut_text(text: str, cuts: Sequence[str]) -> list[str]"),
          "The pieces into which regular expressions cut a text, one after another; ValueError for an unsupported one");
    nb::class_<text::NameFinder>(m, "NameFinder", "Finds names in text, in time that their number does not change.")
        .def(nb::init<const std::vector<std::string>&>(), nb::arg("names"))
        .def("find", &find, nb::arg("text"), nb::sig("def find(self, text: str) -> list[tuple[int, int, int]]"),
             "(name, start, end) of the longest name at each character where one begins; they may overlap");
}

}  // namespace fb
