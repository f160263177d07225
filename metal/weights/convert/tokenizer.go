package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// The kinds of tokens in GGUF that stand in a text as they are.
const (
	kindUnknown     = 2
	kindControl     = 3
	kindUserDefined = 4
)

// step is a component of tokenizer.json.
type step = map[string]any

// byteLevel is the step that turns text into the byte alphabet; regex splits it
// as GPT-2 does first.
func byteLevel(regex bool) step {
	return step{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex}
}

func split(pattern string) step {
	return step{"type": "Split", "pattern": step{"Regex": pattern}, "behavior": "Isolated", "invert": false}
}

func sequence(steps ...step) step { return step{"type": "Sequence", "pretokenizers": steps} }

// reading is how a pre-tokenizer of GGUF reads text, in the components of
// tokenizer.json.
type reading struct {
	normalizer, pre step
	ignoreMerges    bool
}

// readings are the pre-tokenizers by name, as the original models have them.
func readings() map[string]reading {
	const (
		contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|`
		rest         = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	return map[string]reading{
		"gpt-2":     {pre: byteLevel(true)},
		"smollm":    {pre: sequence(step{"type": "Digits", "individual_digits": true}, byteLevel(true))},
		"llama-bpe": {pre: sequence(split(contractions+`\p{N}{1,3}`+rest), byteLevel(false)), ignoreMerges: true},
		"qwen2":     {normalizer: step{"type": "NFC"}, pre: sequence(split(contractions+`\p{N}`+rest), byteLevel(false))},
	}
}

// tokenizerFiles enters what transformers reads for the tokenizer of a GGUF
// file: tokenizer.json, tokenizer_config.json and generation_config.json.
func tokenizerFiles(f *weights.File, files map[string]content) error {
	tok, err := tokenizer.FromGGUF(f.Metadata) // which also checks everything
	if err != nil {
		return err
	}
	if kind, _ := f.Metadata["tokenizer.ggml.model"].(string); kind != "gpt2" {
		return &weights.UnsupportedError{Subject: "conversion of tokenizer", Value: kind, Supported: []string{"gpt2"}}
	}
	g := ggufTokenizer{tok: tok}
	g.tokens, _ = f.Metadata["tokenizer.ggml.tokens"].([]string)
	g.kinds, _ = f.Metadata["tokenizer.ggml.token_type"].([]int32)
	g.merges, _ = f.Metadata["tokenizer.ggml.merges"].([]string)
	g.templates = templatesOf(f.Metadata)
	pre, _ := f.Metadata["tokenizer.ggml.pre"].(string)
	r, ok := readings()[pre]
	if !ok {
		return &weights.UnsupportedError{Subject: "conversion of pre-tokenizer", Value: pre, Supported: []string{"gpt-2", "llama-bpe", "qwen2", "smollm"}}
	}
	for id, t := range g.tokens {
		if !utf8.ValidString(t) {
			return fmt.Errorf("token %d is not UTF-8: %w", id, weights.ErrInvalid)
		}
	}
	for name, v := range map[string]any{
		"tokenizer.json": g.definition(r), "tokenizer_config.json": g.config(f.Dim.Context), generationFile: g.generation(),
	} {
		text, err := indented(v)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		files[name] = textContent(text)
	}
	return nil
}

// ggufTokenizer is a tokenizer as its metadata says it.
type ggufTokenizer struct {
	tok       *tokenizer.Tokenizer
	tokens    []string
	kinds     []int32
	merges    []string
	templates map[string]string
}

// addedToken is one that is found in the text before it is split.
type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// definition is tokenizer.json.
func (g ggufTokenizer) definition(r reading) step {
	vocabulary := make(map[string]int, len(g.tokens))
	var added []addedToken
	for id, t := range g.tokens {
		if _, taken := vocabulary[t]; taken {
			continue // of two tokens with one text, the first one is found
		}
		vocabulary[t] = id
		switch kind := g.kinds[id]; kind {
		case kindUnknown, kindControl, kindUserDefined:
			if t != "" {
				added = append(added, addedToken{ID: id, Content: t, Special: kind != kindUserDefined})
			}
		}
	}
	var normalizer any
	if r.normalizer != nil {
		normalizer = r.normalizer
	}
	return step{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added,
		"normalizer": normalizer, "pre_tokenizer": r.pre, "post_processor": g.postProcessor(),
		"decoder": byteLevel(true),
		"model": step{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": r.ignoreMerges, "vocab": vocabulary, "merges": g.merges,
		},
	}
}

// postProcessor puts around a text what the file says.
func (g ggufTokenizer) postProcessor() any {
	s := g.tok.Special()
	if !s.AddBOS && (!s.AddEOS || s.EOS == tokenizer.None) {
		return nil
	}
	special := step{}
	around := func(name string, sequenceID int) []any {
		var out []any
		put := func(id int32) {
			text := g.tokens[id]
			special[text] = step{"id": text, "ids": []int32{id}, "tokens": []string{text}}
			out = append(out, step{"SpecialToken": step{"id": text, "type_id": sequenceID}})
		}
		if s.AddBOS {
			put(s.BOS)
		}
		out = append(out, step{"Sequence": step{"id": name, "type_id": sequenceID}})
		if s.AddEOS && s.EOS != tokenizer.None {
			put(s.EOS)
		}
		return out
	}
	single := around("A", 0)
	return step{"type": "TemplateProcessing", "single": single, "pair": append(around("A", 0), around("B", 1)...), "special_tokens": special}
}

// config is tokenizer_config.json.
func (g ggufTokenizer) config(context int) step {
	s := g.tok.Special()
	out := step{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, "clean_up_tokenization_spaces": false}
	for name, id := range map[string]int32{"bos_token": s.BOS, "eos_token": s.EOS, "pad_token": s.Padding, "unk_token": s.Unknown} {
		if id != tokenizer.None {
			out[name] = g.tokens[id]
		}
	}
	switch t, ok := g.templates["default"]; {
	case ok && len(g.templates) == 1:
		out["chat_template"] = t
	case len(g.templates) > 0:
		var all []map[string]string
		for _, name := range slices.Sorted(maps.Keys(g.templates)) {
			all = append(all, map[string]string{"name": name, "template": g.templates[name]})
		}
		out["chat_template"] = all
	}
	return out
}

// templatesOf are the chat templates of a file by name.
func templatesOf(metadata map[string]any) map[string]string {
	const key = "tokenizer.chat_template"
	out := map[string]string{}
	for k, v := range metadata {
		text, ok := v.(string)
		if !ok {
			continue
		}
		if k == key {
			out["default"] = text
		} else if name, ok := strings.CutPrefix(k, key+"."); ok {
			out[name] = text
		}
	}
	return out
}

// generation is generation_config.json: every token that ends a turn.
func (g ggufTokenizer) generation() step {
	s := g.tok.Special()
	out := step{"eos_token_id": s.Ends()}
	for name, id := range map[string]int32{"bos_token_id": s.BOS, "pad_token_id": s.Padding} {
		if id != tokenizer.None {
			out[name] = id
		}
	}
	if len(s.Ends()) == 0 {
		delete(out, "eos_token_id")
	}
	return out
}
