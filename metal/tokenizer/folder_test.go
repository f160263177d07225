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
		"another version":                          {change: one("version", "2.0"), kind: ErrUnsupported, says: `version "2.0" (supported: 1.0)`},
		"an unknown model":                         {change: one("model", fields("WordSalad", "vocab", map[string]int{})), kind: ErrUnsupported, says: `model "WordSalad" is not supported (supported: ["BPE" "Unigram" "WordPiece"]`},
		"dropout":                                  {change: one("model", bpeModel("dropout", 0.1)), kind: ErrUnsupported, says: "dropout 0.1"},
		"no vocab":                                 {change: one("model", fields("BPE", "merges", []any{})), kind: ErrInvalid, says: "no vocab"},
		"a vocab of another kind":                  {change: alone(bpeModel("vocab", []any{[]any{"a", 0}})), kind: ErrInvalid, says: "must not be a list"},
		"a vocab that is a number":                 {change: one("model", bpeModel("vocab", 3)), kind: ErrInvalid, says: "neither an object nor a list"},
		"two tokens with one id":                   {change: one("model", bpeModel("vocab", map[string]int{"a": 0, "b": 0}, "merges", []any{})), kind: ErrInvalid, says: "same id 0"},
		"a negative id":                            {change: one("model", bpeModel("vocab", map[string]int{"a": -1})), kind: ErrInvalid, says: `id of token "a" is -1`},
		"an id that is too large":                  {change: one("model", bpeModel("vocab", map[string]int{"a": 1 << 30})), kind: ErrInvalid, says: `id of token "a" is 1073741824`},
		"an id that is no number":                  {change: one("model", bpeModel("vocab", map[string]string{"a": "0"})), kind: ErrInvalid, says: `id of token "a"`},
		"a merge of one":                           {change: one("model", bpeModel("merges", []any{"ab"})), kind: ErrInvalid, says: "merge 0"},
		"a merge of three":                         {change: one("model", bpeModel("merges", []any{[]string{"a", "b", "c"}})), kind: ErrInvalid, says: "merge 0 is not a pair"},
		"a merge of numbers":                       {change: one("model", bpeModel("merges", []any{[]int{1, 2}})), kind: ErrInvalid, says: "merge 0 is not a pair"},
		"a merge of unknown tokens":                {change: one("model", bpeModel("merges", []any{"a x"})), kind: ErrInvalid, says: "not all of its tokens exist"},
		"a merge shorter than its prefix":          {change: one("model", bpeModel("continuing_subword_prefix", "####")), kind: ErrInvalid, says: "shorter than the prefix"},
		"an unknown token that is none":            {change: one("model", bpeModel("unk_token", "<unk>")), kind: ErrInvalid, says: `unk_token "<unk>" is not in the vocab`},
		"an added token with another's id":         {change: one("added_tokens", added(9, "<s>")), kind: ErrInvalid, says: "has id 9 in the file but would get 7"},
		"an added token that is a token elsewhere": {change: one("added_tokens", added(7, "ab")), kind: ErrInvalid, says: "has id 7 in the file but would get 3"},
		"an added token that is too long":          {change: one("added_tokens", added(7, long)), kind: ErrInvalid, says: "more than 1024"},
		"unigram without unknown":                  {change: unigramModel("unk_id", nil), kind: ErrUnsupported, says: "without unk_id"},
		"an unk_id that is none":                   {change: unigramModel("unk_id", 2), kind: ErrInvalid, says: "unk_id is 2"},
		"a unigram vocab that is no list":          {change: unigramModel("vocab", map[string]int{"a": 1}), kind: ErrInvalid, says: "must be a list"},
		"a unigram entry that is no pair":          {change: unigramModel("vocab", []any{[]any{"a"}}), kind: ErrInvalid, says: "token 0"},
		"a unigram token that is too long":         {change: unigramModel("vocab", []any{[]any{"<unk>", 0}, []any{long, 1}}), kind: ErrUnsupported, says: "token 1 has 5000 bytes"},
		"words without end":                        {change: alone(fields("WordPiece", "vocab", map[string]int{"[UNK]": 0}, "max_input_chars_per_word", 1<<40)), kind: ErrUnsupported, says: "max_input_chars_per_word"},
		"WordPiece without unknown":                {change: alone(fields("WordPiece", "vocab", map[string]int{"a": 0})), kind: ErrInvalid, says: `unk_token "[UNK]"`},
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
		"an unknown normalizer":                    {change: one("normalizer", fields("Shout")), kind: ErrUnsupported, says: `normalizer "Shout" is not supported (supported: ["BertNormalizer" "ByteLevel" "Lowercase" "NFC"`},
		"an unknown pre-tokenizer":                 {change: one("pre_tokenizer", fields("Dice")), kind: ErrUnsupported, says: `pre_tokenizer "Dice" is not supported (supported: ["BertPreTokenizer"`},
		"an unknown decoder":                       {change: one("decoder", fields("CTC")), kind: ErrUnsupported, says: `decoder "CTC" is not supported (supported: ["BPEDecoder"`},
		"an unknown post-processor":                {change: one("post_processor", fields("Shuffle")), kind: ErrUnsupported, says: `post_processor "Shuffle" is not supported (supported: ["BertProcessing"`},
		"an unknown behavior":                      {change: one("pre_tokenizer", fields("Punctuation", "behavior", "Eaten")), kind: ErrUnsupported, says: `behavior "Eaten"`},
		"an unknown scheme":                        {change: one("pre_tokenizer", fields("Metaspace", "replacement", "_", "prepend_scheme", "last")), kind: ErrUnsupported, says: `prepend_scheme "last"`},
		"a component of a wrong type":              {change: one("normalizer", []int{1}), kind: ErrInvalid, says: "normalizer"},
		"a field of a wrong type":                  {change: one("pre_tokenizer", fields("Digits", "individual_digits", "yes")), kind: ErrInvalid, says: "Digits"},
		"sequences that nest too deep":             {change: one("normalizer", nested(maxNesting+1, "normalizers", fields("NFC"))), kind: ErrInvalid, says: "nested over 8 levels deep"},
		"a sequence that is too long":              {change: one("normalizer", fields("Sequence", "normalizers", many)), kind: ErrInvalid, says: "over 64 members"},
		"a sequence without members":               {change: one("decoder", fields("Sequence")), kind: ErrInvalid, says: "decoders of a Sequence"},
		"a map of characters that is too short":    {change: one("normalizer", fields("Precompiled", "precompiled_charsmap", "AAA=")), kind: ErrInvalid, says: "2 bytes"},
		"a map of characters whose trie is longer": {change: one("normalizer", fields("Precompiled", "precompiled_charsmap", "AAQAAAAAAAA=")), kind: ErrInvalid, says: "a trie of 1024"},
		"a map of characters that is no base64":    {change: one("normalizer", fields("Precompiled", "precompiled_charsmap", "!")), kind: ErrInvalid, says: "Precompiled"},
		"a replacement that is too long":           {change: one("normalizer", fields("Replace", "pattern", map[string]any{"String": "a"}, "content", long)), kind: ErrUnsupported, says: "5000 bytes"},
		"a replacement of nothing":                 {change: one("normalizer", fields("Replace", "pattern", map[string]any{"String": ""}, "content", "x")), kind: ErrUnsupported, says: "empty string"},
		"a prefix that is too long":                {change: one("normalizer", fields("Prepend", "prepend", long)), kind: ErrUnsupported, says: "5000 bytes"},
		"a pattern of neither kind":                {change: one("normalizer", fields("Replace", "pattern", map[string]any{}, "content", "x")), kind: ErrInvalid, says: "a String or a Regex"},
		"an alphabet before other steps":           {change: one("normalizer", fields("Sequence", "normalizers", []any{fields("ByteLevel"), fields("NFC")})), kind: ErrUnsupported, says: "ByteLevel precedes other normalizers"},
		"an alphabet twice":                        {change: one("pre_tokenizer", fields("Sequence", "pretokenizers", []any{fields("ByteLevel"), fields("ByteLevel")})), kind: ErrUnsupported, says: "twice"},
		"marks after an alphabet":                  {change: one("pre_tokenizer", fields("Sequence", "pretokenizers", []any{fields("ByteLevel"), fields("Metaspace", "replacement", "_")})), kind: ErrUnsupported, says: "follows ByteLevel"},
		"a mark of two characters":                 {change: one("pre_tokenizer", fields("Metaspace", "replacement", "__")), kind: ErrInvalid, says: "want one character"},
		"marks that contradict":                    {change: one("pre_tokenizer", fields("Metaspace", "replacement", "_", "add_prefix_space", false)), kind: ErrInvalid, says: "add_prefix_space"},
		"a delimiter of two characters":            {change: one("pre_tokenizer", fields("CharDelimiterSplit", "delimiter", "ab")), kind: ErrInvalid, says: "want one character"},
		"a pattern that is too long":               {change: one("pre_tokenizer", split(long)), kind: ErrUnsupported, says: "5000 bytes"},
		"a pattern that refers back":               {change: one("pre_tokenizer", split(`(a)\1`)), kind: ErrUnsupported, says: `\1 at character 3 is not supported`},
		"a pattern with an unknown property":       {change: one("pre_tokenizer", split(`\p{Klingon}`)), kind: ErrUnsupported, says: "property Klingon"},
		"a pattern that does not end":              {change: one("pre_tokenizer", split(`(a`)), kind: ErrInvalid, says: "( without )"},
		"a pattern that ends twice":                {change: one("pre_tokenizer", split(`a)`)), kind: ErrInvalid, says: ") without ("},
		"a set that does not end":                  {change: one("pre_tokenizer", split(`[a`)), kind: ErrInvalid, says: "[ without ]"},
		"a pattern that repeats nothing":           {change: one("pre_tokenizer", split(`a|*`)), kind: ErrUnsupported, says: "repetition of nothing"},
		"a pattern that repeats too often":         {change: one("pre_tokenizer", split(`a{99999}`)), kind: ErrUnsupported, says: "repetition {99999}"},
		"a pattern that nests too deep":            {change: one("pre_tokenizer", split(strings.Repeat("(", 100)+strings.Repeat(")", 100))), kind: ErrUnsupported, says: "nesting"},
		"a decoder that cleans joined text":        {change: one("decoder", fields("Sequence", "decoders", []any{fields("Fuse"), fields("WordPiece")})), kind: ErrUnsupported, says: "joins all tokens"},
		"a decoder that strips two characters":     {change: one("decoder", fields("Strip", "content", "ab", "start", 1, "stop", 0)), kind: ErrInvalid, says: "one character"},
		"a decoder that strips without end":        {change: one("decoder", fields("Strip", "content", "a", "start", 1<<40, "stop", 0)), kind: ErrInvalid, says: "up to 64"},
		"a decoder that replaces a pattern":        {change: one("decoder", fields("Replace", "pattern", map[string]any{"Regex": "a"}, "content", "b")), kind: ErrUnsupported, says: "a String"},
		"a token around texts that is none":        {change: one("post_processor", template("<s>", 99, "A")), kind: ErrInvalid, says: "adds token 99"},
		"a token around texts without a name":      {change: one("post_processor", template("<t>", 7, "A")), kind: ErrInvalid, says: "nor a named token"},
		"two texts where there is one":             {change: one("post_processor", template("<s>", 7, "B")), kind: ErrInvalid, says: "neither a sequence"},
		"two processors":                           {change: one("post_processor", fields("Sequence", "processors", []any{template("<s>", 7, "A"), template("<s>", 7, "A")})), kind: ErrUnsupported, says: "2 members that add"},
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
		"no JSON":                          {name: "tokenizer.json", text: "hello", kind: ErrInvalid, says: "tokenizer.json"},
		"JSON that is no object":           {name: "tokenizer.json", text: "[]", kind: ErrInvalid, says: "not an object"},
		"a file that was cut":              {name: "tokenizer.json", text: whole[:len(whole)/2], kind: ErrInvalid, says: "ends early"},
		"lists in lists without end":       {name: "tokenizer.json", text: `{"x":` + strings.Repeat("[", 1<<20), kind: ErrInvalid, says: "tokenizer.json"},
		"too many added tokens":            {name: "tokenizer.json", text: `{"added_tokens":[` + strings.Repeat("{},", maxAdded) + `{}]}`, kind: ErrInvalid, says: "over 65536 entries"},
		"a component of many values":       {name: "tokenizer.json", text: `{"decoder":[` + strings.Repeat("{},", maxComponentValues) + `{}]}`, kind: ErrInvalid, says: "over 16384 values"},
		"a component without end":          {name: "tokenizer.json", text: `{"decoder":"` + strings.Repeat("x", maxComponentBytes) + `"}`, kind: ErrInvalid, says: "over 8388608 bytes"},
		"an end that is no token":          {name: "generation_config.json", text: `{"eos_token_id": [8, 9]}`, kind: ErrInvalid, says: "eos_token_id of generation_config.json is 9, but there are 9 tokens"},
		"too many ends":                    {name: "generation_config.json", text: `{"eos_token_id": ` + manyIDs + `}`, kind: ErrInvalid, says: "257 ids, more than 256"},
		"an end that is text":              {name: "config.json", text: `{"eos_token_id": "8"}`, kind: ErrInvalid, says: "config.json"},
		"a beginning that is no token":     {name: "config.json", text: `{"bos_token_id": 99}`, kind: ErrInvalid, says: "bos_token_id of config.json is 99"},
		"a special token that is a number": {name: "tokenizer_config.json", text: `{"bos_token": 3}`, kind: ErrInvalid, says: "tokenizer_config.json"},
		"more tokens than there are ids":   {name: "tokenizer_config.json", text: `{"added_tokens_decoder": {"12": {"content": "<new>"}}}`, kind: ErrInvalid, says: "has id 12 in the file but would get 9"},
		"a configuration that is too long": {name: "special_tokens_map.json", text: `{"x":"` + strings.Repeat("x", maxConfigBytes) + `"}`, kind: folder.ErrTooLarge, says: "special_tokens_map.json"},
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
		"generation_config before config": {files: map[string]string{"generation_config.json": `{"eos_token_id": 8}`, "config.json": `{"eos_token_id": [3, 4], "bos_token_id": 7}`}, bos: 7, eos: 8, ends: []int32{8}, adds: true, around: []int32{7, 0}},
		"config alone":                    {files: map[string]string{"config.json": `{"eos_token_id": [3, 4]}`}, bos: None, eos: 3, ends: []int32{3, 4}, around: []int32{7, 0}},
		"the configuration of the text":   {files: map[string]string{"config.json": `{"text_config": {"eos_token_id": 4}}`}, bos: None, eos: 4, ends: []int32{4}, around: []int32{7, 0}},
		"names before ids": {files: map[string]string{"config.json": `{"eos_token_id": 3, "bos_token_id": 3}`, "tokenizer_config.json": `{"eos_token": "<e>", "bos_token": "<s>"}`},
			bos: 7, eos: 8, ends: []int32{8, 3}, adds: true, around: []int32{7, 0}},
		"the map where the configuration is silent": {files: map[string]string{"special_tokens_map.json": `{"eos_token": {"content": "<e>"}}`, "tokenizer_config.json": `{"eos_token": null}`},
			bos: None, eos: 8, ends: []int32{8}, around: []int32{7, 0}},
		"the post-processor before a beginning that is not wanted": {files: map[string]string{"tokenizer_config.json": `{"bos_token": "<s>", "add_bos_token": false}`}, bos: 7, eos: None, adds: true, around: []int32{7, 0}},
		"the post-processor before an end that is wanted": {files: map[string]string{"tokenizer_config.json": `{"bos_token": "<s>", "eos_token": "<e>", "add_bos_token": true, "add_eos_token": true}`},
			bos: 7, eos: 8, ends: []int32{8}, adds: true, around: []int32{7, 0}},
		"negative ids mean none":      {files: map[string]string{"config.json": `{"eos_token_id": -1, "bos_token_id": -1, "pad_token_id": -1}`}, bos: None, eos: None, around: []int32{7, 0}},
		"names of no token mean none": {files: map[string]string{"tokenizer_config.json": `{"bos_token": "<nothing>"}`}, bos: None, eos: None, around: []int32{7, 0}},
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
