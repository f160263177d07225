//go:build !race

package tokenizer

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/folder"
)

// write makes a model folder of these files.
func write(t testing.TB, files map[string]string) *folder.Folder {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := folder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// tinyJSON is a tokenizer.json of byte-level BPE over a few bytes; its fields
// may be replaced.
func tinyJSON(t testing.TB, change map[string]any) string {
	t.Helper()
	parts := map[string]any{
		"version": "1.0", "truncation": map[string]any{"max_length": 1}, "padding": nil,
		"added_tokens": []any{
			map[string]any{"id": 7, "content": "<s>", "special": true},
			map[string]any{"id": 8, "content": "<e>", "special": true},
		},
		"normalizer":    nil,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"post_processor": map[string]any{
			"type": "TemplateProcessing",
			"single": []any{
				map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}},
			},
			"pair": []any{
				map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}},
			},
			"special_tokens": map[string]any{"<s>": map[string]any{"id": "<s>", "ids": []int{7}, "tokens": []string{"<s>"}}},
		},
		"model": map[string]any{
			"type": "BPE", "vocab": map[string]int{"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "Ã": 5, "©": 6},
			"merges": []any{"a b", []string{"Ġ", "ab"}},
		},
	}
	maps.Copy(parts, change)
	raw, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestAFolderGivesItsTokenizer(t *testing.T) {
	tok, err := FromFolder(write(t, map[string]string{
		"tokenizer.json":         tinyJSON(t, nil),
		"tokenizer_config.json":  `{"bos_token": {"content": "<s>"}, "eos_token": "<e>"}`,
		"generation_config.json": `{"eos_token_id": [8, 7], "pad_token_id": 8}`,
		"config.json":            `{"eos_token_id": 3, "bos_token_id": 5}`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	ids := encode(t, tok, "ab ab<e>é", EncodeOptions{AddBOS: true, ParseSpecial: true})
	if want := []int32{7, 3, 4, 8, 5, 6}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
	if text, err := tok.Decode(ids, true); err != nil || text != "ab abé" {
		t.Errorf("%q, %v", text, err)
	}
	s := tok.Special()
	if s.BOS != 7 || s.EOS != 8 || s.Padding != 8 || !s.AddBOS || s.AddEOS || !slices.Equal(s.Ends(), []int32{8, 7}) {
		t.Errorf("special tokens %+v", s)
	}
}

func TestAFolderWithoutATokenizerSaysSo(t *testing.T) {
	if _, err := FromFolder(write(t, nil)); !errors.Is(err, folder.ErrMissing) || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("error %v", err)
	}
}

// fields is a component with its type and fields.
func fields(kind string, more ...any) map[string]any {
	m := map[string]any{"type": kind}
	for i := 0; i < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

// bpeModel is the model of tinyJSON with some fields replaced.
func bpeModel(change ...any) map[string]any {
	m := fields("BPE", "vocab", map[string]int{"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "Ã": 5, "©": 6}, "merges", []any{"a b", []string{"Ġ", "ab"}})
	for i := 0; i < len(change); i += 2 {
		m[change[i].(string)] = change[i+1]
	}
	return m
}

func added(id int, content string) []any {
	return []any{map[string]any{"id": id, "content": content, "special": true}}
}

// nested is a sequence in a sequence, depth times.
func nested(depth int, inner string, leaf any) any {
	for range depth {
		leaf = fields("Sequence", inner, []any{leaf})
	}
	return leaf
}

func split(expr string) map[string]any {
	return fields("Split", "pattern", map[string]any{"Regex": expr}, "behavior", "Isolated", "invert", false)
}

// refusal is a tokenizer.json that is refused: what it changes in tinyJSON.
type refusal struct {
	change map[string]any
	kind   error
	says   string
}

func wantRefused(t *testing.T, tests map[string]refusal) {
	t.Helper()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := FromFolder(write(t, map[string]string{"tokenizer.json": tinyJSON(t, tc.change)}))
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %v saying %q", err, tc.kind, tc.says)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

func one(key string, v any) map[string]any { return map[string]any{key: v} }

// alone is a model without the tokens around it.
func alone(model any) map[string]any {
	return map[string]any{"model": model, "added_tokens": []any{}, "post_processor": nil}
}

func unigramModel(change ...any) map[string]any {
	m := fields("Unigram", "vocab", []any{[]any{"<unk>", 0}, []any{"a", -1.5}}, "unk_id", 0)
	for i := 0; i < len(change); i += 2 {
		m[change[i].(string)] = change[i+1]
	}
	return map[string]any{"model": m, "added_tokens": []any{}, "pre_tokenizer": nil, "post_processor": nil, "decoder": nil}
}

func TestWhatAModelMayNotSay(t *testing.T) {
	long := strings.Repeat("x", 5000)
	wantRefused(t, map[string]refusal{
		"another version":                          {one("version", "2.0"), ErrUnsupported, `version "2.0" (supported: 1.0)`},
		"an unknown model":                         {one("model", fields("WordSalad", "vocab", map[string]int{})), ErrUnsupported, `model "WordSalad" is not supported (supported: ["BPE" "Unigram" "WordPiece"]`},
		"dropout":                                  {one("model", bpeModel("dropout", 0.1)), ErrUnsupported, "dropout 0.1"},
		"no vocab":                                 {one("model", fields("BPE", "merges", []any{})), ErrInvalid, "no vocab"},
		"a vocab of another kind":                  {alone(bpeModel("vocab", []any{[]any{"a", 0}})), ErrInvalid, "must not be a list"},
		"a vocab that is a number":                 {one("model", bpeModel("vocab", 3)), ErrInvalid, "neither an object nor a list"},
		"two tokens with one id":                   {one("model", bpeModel("vocab", map[string]int{"a": 0, "b": 0}, "merges", []any{})), ErrInvalid, "same id 0"},
		"a negative id":                            {one("model", bpeModel("vocab", map[string]int{"a": -1})), ErrInvalid, `id of token "a" is -1`},
		"an id that is too large":                  {one("model", bpeModel("vocab", map[string]int{"a": 1 << 30})), ErrInvalid, `id of token "a" is 1073741824`},
		"an id that is no number":                  {one("model", bpeModel("vocab", map[string]string{"a": "0"})), ErrInvalid, `id of token "a"`},
		"a merge of one":                           {one("model", bpeModel("merges", []any{"ab"})), ErrInvalid, "merge 0"},
		"a merge of three":                         {one("model", bpeModel("merges", []any{[]string{"a", "b", "c"}})), ErrInvalid, "merge 0 is not a pair"},
		"a merge of numbers":                       {one("model", bpeModel("merges", []any{[]int{1, 2}})), ErrInvalid, "merge 0 is not a pair"},
		"a merge of unknown tokens":                {one("model", bpeModel("merges", []any{"a x"})), ErrInvalid, "not all of its tokens exist"},
		"a merge shorter than its prefix":          {one("model", bpeModel("continuing_subword_prefix", "####")), ErrInvalid, "shorter than the prefix"},
		"an unknown token that is none":            {one("model", bpeModel("unk_token", "<unk>")), ErrInvalid, `unk_token "<unk>" is not in the vocab`},
		"an added token with another's id":         {one("added_tokens", added(9, "<s>")), ErrInvalid, "has id 9 in the file but would get 7"},
		"an added token that is a token elsewhere": {one("added_tokens", added(7, "ab")), ErrInvalid, "has id 7 in the file but would get 3"},
		"an added token that is too long":          {one("added_tokens", added(7, long)), ErrInvalid, "more than 1024"},
		"unigram without unknown":                  {unigramModel("unk_id", nil), ErrUnsupported, "without unk_id"},
		"an unk_id that is none":                   {unigramModel("unk_id", 2), ErrInvalid, "unk_id is 2"},
		"a unigram vocab that is no list":          {unigramModel("vocab", map[string]int{"a": 1}), ErrInvalid, "must be a list"},
		"a unigram entry that is no pair":          {unigramModel("vocab", []any{[]any{"a"}}), ErrInvalid, "token 0"},
		"a unigram token that is too long":         {unigramModel("vocab", []any{[]any{"<unk>", 0}, []any{long, 1}}), ErrUnsupported, "token 1 has 5000 bytes"},
		"words without end":                        {alone(fields("WordPiece", "vocab", map[string]int{"[UNK]": 0}, "max_input_chars_per_word", 1<<40)), ErrUnsupported, "max_input_chars_per_word"},
		"WordPiece without unknown":                {alone(fields("WordPiece", "vocab", map[string]int{"a": 0})), ErrInvalid, `unk_token "[UNK]"`},
	})
}

func TestWhatComponentsMayNotSay(t *testing.T) {
	long := strings.Repeat("x", 5000)
	var many []any
	for range maxComponents + 1 {
		many = append(many, fields("NFC"))
	}
	template := func(token string, id int, sequence string) map[string]any {
		return fields("TemplateProcessing",
			"single", []any{map[string]any{"SpecialToken": map[string]any{"id": token}}, map[string]any{"Sequence": map[string]any{"id": sequence}}},
			"pair", []any{map[string]any{"Sequence": map[string]any{"id": "A"}}},
			"special_tokens", map[string]any{"<s>": map[string]any{"ids": []int{id}}})
	}
	wantRefused(t, map[string]refusal{
		"an unknown normalizer":                    {one("normalizer", fields("Shout")), ErrUnsupported, `normalizer "Shout" is not supported (supported: ["BertNormalizer" "ByteLevel" "Lowercase" "NFC"`},
		"an unknown pre-tokenizer":                 {one("pre_tokenizer", fields("Dice")), ErrUnsupported, `pre_tokenizer "Dice" is not supported (supported: ["BertPreTokenizer"`},
		"an unknown decoder":                       {one("decoder", fields("CTC")), ErrUnsupported, `decoder "CTC" is not supported (supported: ["BPEDecoder"`},
		"an unknown post-processor":                {one("post_processor", fields("Shuffle")), ErrUnsupported, `post_processor "Shuffle" is not supported (supported: ["BertProcessing"`},
		"an unknown behavior":                      {one("pre_tokenizer", fields("Punctuation", "behavior", "Eaten")), ErrUnsupported, `behavior "Eaten"`},
		"an unknown scheme":                        {one("pre_tokenizer", fields("Metaspace", "replacement", "_", "prepend_scheme", "last")), ErrUnsupported, `prepend_scheme "last"`},
		"a component of a wrong type":              {one("normalizer", []int{1}), ErrInvalid, "normalizer"},
		"a field of a wrong type":                  {one("pre_tokenizer", fields("Digits", "individual_digits", "yes")), ErrInvalid, "Digits"},
		"sequences that nest too deep":             {one("normalizer", nested(maxNesting+1, "normalizers", fields("NFC"))), ErrInvalid, "nested over 8 levels deep"},
		"a sequence that is too long":              {one("normalizer", fields("Sequence", "normalizers", many)), ErrInvalid, "over 64 members"},
		"a sequence without members":               {one("decoder", fields("Sequence")), ErrInvalid, "decoders of a Sequence"},
		"a map of characters that is too short":    {one("normalizer", fields("Precompiled", "precompiled_charsmap", "AAA=")), ErrInvalid, "2 bytes"},
		"a map of characters whose trie is longer": {one("normalizer", fields("Precompiled", "precompiled_charsmap", "AAQAAAAAAAA=")), ErrInvalid, "a trie of 1024"},
		"a map of characters that is no base64":    {one("normalizer", fields("Precompiled", "precompiled_charsmap", "!")), ErrInvalid, "Precompiled"},
		"a replacement that is too long":           {one("normalizer", fields("Replace", "pattern", map[string]any{"String": "a"}, "content", long)), ErrUnsupported, "5000 bytes"},
		"a replacement of nothing":                 {one("normalizer", fields("Replace", "pattern", map[string]any{"String": ""}, "content", "x")), ErrUnsupported, "empty string"},
		"a prefix that is too long":                {one("normalizer", fields("Prepend", "prepend", long)), ErrUnsupported, "5000 bytes"},
		"a pattern of neither kind":                {one("normalizer", fields("Replace", "pattern", map[string]any{}, "content", "x")), ErrInvalid, "a String or a Regex"},
		"an alphabet before other steps":           {one("normalizer", fields("Sequence", "normalizers", []any{fields("ByteLevel"), fields("NFC")})), ErrUnsupported, "ByteLevel precedes other normalizers"},
		"an alphabet twice":                        {one("pre_tokenizer", fields("Sequence", "pretokenizers", []any{fields("ByteLevel"), fields("ByteLevel")})), ErrUnsupported, "twice"},
		"marks after an alphabet":                  {one("pre_tokenizer", fields("Sequence", "pretokenizers", []any{fields("ByteLevel"), fields("Metaspace", "replacement", "_")})), ErrUnsupported, "follows ByteLevel"},
		"a mark of two characters":                 {one("pre_tokenizer", fields("Metaspace", "replacement", "__")), ErrInvalid, "want one character"},
		"marks that contradict":                    {one("pre_tokenizer", fields("Metaspace", "replacement", "_", "add_prefix_space", false)), ErrInvalid, "add_prefix_space"},
		"a delimiter of two characters":            {one("pre_tokenizer", fields("CharDelimiterSplit", "delimiter", "ab")), ErrInvalid, "want one character"},
		"a pattern that is too long":               {one("pre_tokenizer", split(long)), ErrUnsupported, "5000 bytes"},
		"a pattern that refers back":               {one("pre_tokenizer", split(`(a)\1`)), ErrUnsupported, `\1 at character 3 is not supported`},
		"a pattern with an unknown property":       {one("pre_tokenizer", split(`\p{Klingon}`)), ErrUnsupported, "property Klingon"},
		"a pattern that does not end":              {one("pre_tokenizer", split(`(a`)), ErrInvalid, "( without )"},
		"a pattern that ends twice":                {one("pre_tokenizer", split(`a)`)), ErrInvalid, ") without ("},
		"a set that does not end":                  {one("pre_tokenizer", split(`[a`)), ErrInvalid, "[ without ]"},
		"a pattern that repeats nothing":           {one("pre_tokenizer", split(`a|*`)), ErrUnsupported, "repetition of nothing"},
		"a pattern that repeats too often":         {one("pre_tokenizer", split(`a{99999}`)), ErrUnsupported, "repetition {99999}"},
		"a pattern that nests too deep":            {one("pre_tokenizer", split(strings.Repeat("(", 100)+strings.Repeat(")", 100))), ErrUnsupported, "nesting"},
		"a decoder that cleans joined text":        {one("decoder", fields("Sequence", "decoders", []any{fields("Fuse"), fields("WordPiece")})), ErrUnsupported, "joins all tokens"},
		"a decoder that strips two characters":     {one("decoder", fields("Strip", "content", "ab", "start", 1, "stop", 0)), ErrInvalid, "one character"},
		"a decoder that strips without end":        {one("decoder", fields("Strip", "content", "a", "start", 1<<40, "stop", 0)), ErrInvalid, "up to 64"},
		"a decoder that replaces a pattern":        {one("decoder", fields("Replace", "pattern", map[string]any{"Regex": "a"}, "content", "b")), ErrUnsupported, "a String"},
		"a token around texts that is none":        {one("post_processor", template("<s>", 99, "A")), ErrInvalid, "adds token 99"},
		"a token around texts without a name":      {one("post_processor", template("<t>", 7, "A")), ErrInvalid, "nor a named token"},
		"two texts where there is one":             {one("post_processor", template("<s>", 7, "B")), ErrInvalid, "neither a sequence"},
		"two processors":                           {one("post_processor", fields("Sequence", "processors", []any{template("<s>", 7, "A"), template("<s>", 7, "A")})), ErrUnsupported, "2 members that add"},
	})
}

func TestWhatTheFilesOfAFolderMayNotSay(t *testing.T) {
	whole := tinyJSON(t, nil)
	manyIDs := "[" + strings.Repeat("1,", maxEnds) + "1]"
	tests := map[string]struct {
		name, text string
		kind       error
		says       string
	}{
		"no JSON":                          {"tokenizer.json", "hello", ErrInvalid, "tokenizer.json"},
		"JSON that is no object":           {"tokenizer.json", "[]", ErrInvalid, "not an object"},
		"a file that was cut":              {"tokenizer.json", whole[:len(whole)/2], ErrInvalid, "ends early"},
		"lists in lists without end":       {"tokenizer.json", `{"x":` + strings.Repeat("[", 1<<20), ErrInvalid, "tokenizer.json"},
		"too many added tokens":            {"tokenizer.json", `{"added_tokens":[` + strings.Repeat("{},", maxAdded) + `{}]}`, ErrInvalid, "over 65536 entries"},
		"a component without end":          {"tokenizer.json", `{"decoder":"` + strings.Repeat("x", maxComponentBytes) + `"}`, ErrInvalid, "over 8388608 bytes"},
		"an end that is no token":          {"generation_config.json", `{"eos_token_id": [8, 9]}`, ErrInvalid, "eos_token_id of generation_config.json is 9, but there are 9 tokens"},
		"too many ends":                    {"generation_config.json", `{"eos_token_id": ` + manyIDs + `}`, ErrInvalid, "257 ids, more than 256"},
		"an end that is text":              {"config.json", `{"eos_token_id": "8"}`, ErrInvalid, "config.json"},
		"a beginning that is no token":     {"config.json", `{"bos_token_id": 99}`, ErrInvalid, "bos_token_id of config.json is 99"},
		"a special token that is a number": {"tokenizer_config.json", `{"bos_token": 3}`, ErrInvalid, "tokenizer_config.json"},
		"more tokens than there are ids":   {"tokenizer_config.json", `{"added_tokens_decoder": {"12": {"content": "<new>"}}}`, ErrInvalid, "has id 12 in the file but would get 9"},
		"a configuration that is too long": {"special_tokens_map.json", `{"x":"` + strings.Repeat("x", maxConfigBytes) + `"}`, folder.ErrTooLarge, "special_tokens_map.json"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"tokenizer.json": whole}
			files[tc.name] = tc.text
			_, err := FromFolder(write(t, files))
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.says) || len(err.Error()) > 1000 {
				t.Errorf("error %.1000v, want %v saying %q", err, tc.kind, tc.says)
			}
		})
	}
}

func TestSpecialTokensComeFromTheFirstFileThatNamesThem(t *testing.T) {
	tests := map[string]struct {
		files    map[string]string
		bos, eos int32
		ends     []int32
		adds     bool
		around   []int32 // ids around "a"
	}{
		"generation_config before config": {map[string]string{"generation_config.json": `{"eos_token_id": 8}`, "config.json": `{"eos_token_id": [3, 4], "bos_token_id": 7}`}, 7, 8, []int32{8}, true, []int32{7, 0}},
		"config alone":                    {map[string]string{"config.json": `{"eos_token_id": [3, 4]}`}, None, 3, []int32{3, 4}, false, []int32{7, 0}},
		"the configuration of the text":   {map[string]string{"config.json": `{"text_config": {"eos_token_id": 4}}`}, None, 4, []int32{4}, false, []int32{7, 0}},
		"names before ids": {map[string]string{"config.json": `{"eos_token_id": 3, "bos_token_id": 3}`, "tokenizer_config.json": `{"eos_token": "<e>", "bos_token": "<s>"}`},
			7, 8, []int32{8, 3}, true, []int32{7, 0}},
		"the map where the configuration is silent": {map[string]string{"special_tokens_map.json": `{"eos_token": {"content": "<e>"}}`, "tokenizer_config.json": `{"eos_token": null}`},
			None, 8, []int32{8}, false, []int32{7, 0}},
		"the post-processor before a beginning that is not wanted": {map[string]string{"tokenizer_config.json": `{"bos_token": "<s>", "add_bos_token": false}`}, 7, None, nil, true, []int32{7, 0}},
		"the post-processor before an end that is wanted": {map[string]string{"tokenizer_config.json": `{"bos_token": "<s>", "eos_token": "<e>", "add_bos_token": true, "add_eos_token": true}`},
			7, 8, []int32{8}, true, []int32{7, 0}},
		"negative ids mean none":      {map[string]string{"config.json": `{"eos_token_id": -1, "bos_token_id": -1, "pad_token_id": -1}`}, None, None, nil, false, []int32{7, 0}},
		"names of no token mean none": {map[string]string{"tokenizer_config.json": `{"bos_token": "<nothing>"}`}, None, None, nil, false, []int32{7, 0}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.files["tokenizer.json"] = tinyJSON(t, nil)
			tok, err := FromFolder(write(t, tc.files))
			if err != nil {
				t.Fatal(err)
			}
			s := tok.Special()
			if s.BOS != tc.bos || s.EOS != tc.eos || !slices.Equal(s.Ends(), tc.ends) || s.AddBOS != tc.adds {
				t.Errorf("special tokens %+v", s)
			}
			if ids := encode(t, tok, "a", EncodeOptions{AddSpecial: true}); !slices.Equal(ids, tc.around) {
				t.Errorf("ids %v, want %v", ids, tc.around)
			}
		})
	}
}

func TestTokensOfTheConfigurationAreFound(t *testing.T) {
	tok, err := FromFolder(write(t, map[string]string{
		"tokenizer.json":        tinyJSON(t, nil),
		"tokenizer_config.json": `{"pad_token": "ab", "added_tokens_decoder": {"7": {"content": "<s>"}, "9": {"content": "<new>", "special": true}}}`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	ids := encode(t, tok, "ab<new>", EncodeOptions{ParseSpecial: true})
	if !slices.Equal(ids, []int32{3, 9}) || !tok.IsControl(3) || tok.Special().Padding != 3 {
		t.Errorf("ids %v, %+v", ids, tok.Special())
	}
	if plain := encode(t, tok, "ab<new>", EncodeOptions{}); slices.Contains(plain, 9) {
		t.Errorf("plain text became a control token: %v", plain)
	}
}
