// Package tinymodel writes random Llama models as GGUF files, so that tests
// and benchmarks need no download: a real byte-level BPE vocabulary with all
// 256 bytes and some merges, a ChatML template, and weights that depend on the
// seed alone. Any size can be written; data is streamed.
//
// It owns the smallest honest model. It refuses sizes that no engine would
// load. Only tests and commands under hack import it.
//
// Start reading at Config and Write.
package tinymodel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/metal/weights"
)

// Config is what to write. Zero values mean those of Default.
type Config struct {
	Seed        uint64
	Name        string
	Layers      int
	Hidden      int
	FeedForward int
	QueryHeads  int
	KVHeads     int
	HeadSize    int
	Context     int
	// Vocabulary counts tokens; it is filled up with reserved ones.
	Vocabulary int
	// Type of the matrices; norms are always F32.
	Type weights.Type
	// Untied gives the model an output head of its own.
	Untied bool
	// Endless makes a model that never ends its turn by itself: end of turn is
	// the last token, whose score is always 0. Needs a tied head.
	Endless bool
	// RopeFactors writes one frequency divisor per rotary pair.
	RopeFactors bool
}

// Default is a model of about 700 kB that runs thousands of tokens a second.
func Default() Config {
	return Config{
		Seed: 1, Name: "tiny", Layers: 2, Hidden: 64, FeedForward: 128, QueryHeads: 4, KVHeads: 2, HeadSize: 16,
		Context: 512, Vocabulary: 512, Type: weights.Q4_1,
	}
}

// Large returns a configuration whose file has about the given bytes, with the
// proportions of a real model.
func Large(bytes int64) Config {
	c := Default()
	c.Name, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize, c.Vocabulary = "large", 2048, 8192, 32, 8, 64, 32768
	perLayer := int64(c.Hidden) * int64(2*c.QueryHeads*c.HeadSize+2*c.KVHeads*c.HeadSize+3*c.FeedForward) * 20 / 32
	embed := int64(c.Vocabulary) * int64(c.Hidden) * 20 / 32
	c.Layers = int(max(1, (bytes-embed+perLayer/2)/perLayer))
	return c
}

func (c Config) filled() Config {
	d := Default()
	for _, f := range []struct{ v, def *int }{
		{&c.Layers, &d.Layers}, {&c.Hidden, &d.Hidden}, {&c.FeedForward, &d.FeedForward}, {&c.QueryHeads, &d.QueryHeads},
		{&c.KVHeads, &d.KVHeads}, {&c.HeadSize, &d.HeadSize}, {&c.Context, &d.Context}, {&c.Vocabulary, &d.Vocabulary},
	} {
		if *f.v == 0 {
			*f.v = *f.def
		}
	}
	if c.Name == "" {
		c.Name = d.Name
	}
	return c
}

func (c Config) validate(vocabulary int) error {
	switch {
	case c.Hidden%weights.GroupSize != 0 || c.FeedForward%weights.GroupSize != 0 || c.QueryHeads*c.HeadSize%weights.GroupSize != 0:
		return fmt.Errorf("tiny model: widths %d, %d and %d must be multiples of %d", c.Hidden, c.FeedForward, c.QueryHeads*c.HeadSize, weights.GroupSize)
	case c.Layers < 1 || c.KVHeads < 1 || c.QueryHeads%c.KVHeads != 0 || c.HeadSize%2 != 0:
		return fmt.Errorf("tiny model: %d layers, %d heads over %d of size %d cannot be", c.Layers, c.QueryHeads, c.KVHeads, c.HeadSize)
	case c.Vocabulary < vocabulary || c.Endless && c.Vocabulary == vocabulary:
		return fmt.Errorf("tiny model: vocabulary of %d, want at least %d, and one more for a model without end", c.Vocabulary, vocabulary)
	case c.Endless && c.Untied:
		return errors.New("tiny model: one without end needs a tied head")
	}
	return nil
}

// Write writes a model to path, whole or not at all.
func Write(path string, c Config) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tinymodel-*")
	if err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := WriteTo(f, c); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	return nil
}

// WriteTo streams a model.
func WriteTo(w io.Writer, c Config) error {
	c = c.filled()
	vocab := newVocabulary()
	if err := c.validate(len(vocab.tokens)); err != nil {
		return err
	}
	vocab.reserve(c.Vocabulary)
	tensors, err := c.tensors()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<20)
	h := new(header)
	c.metadata(h, vocab)
	if _, err := out.Write(h.bytes(tensors)); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	for _, t := range tensors {
		if err := t.write(out, c.Seed); err != nil {
			return fmt.Errorf("write tiny model: tensor %s: %w", t.name, err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	return nil
}

func (c Config) endOfTurn() int {
	if c.Endless {
		return c.Vocabulary - 1
	}
	return 2 // <|im_end|>
}

// Template is the ChatML template the models carry.
const Template = `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a tiny model.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}`

func (c Config) metadata(h *header, v *vocabulary) {
	h.text("general.architecture", "llama")
	h.text("general.name", c.Name)
	h.text("general.license", "apache-2.0")
	for _, kv := range []struct {
		key string
		v   int
	}{
		{"llama.block_count", c.Layers}, {"llama.context_length", c.Context}, {"llama.embedding_length", c.Hidden},
		{"llama.feed_forward_length", c.FeedForward}, {"llama.attention.head_count", c.QueryHeads},
		{"llama.attention.head_count_kv", c.KVHeads}, {"llama.attention.key_length", c.HeadSize},
		{"llama.attention.value_length", c.HeadSize}, {"llama.rope.dimension_count", c.HeadSize}, {"llama.vocab_size", c.Vocabulary},
	} {
		h.number(kv.key, uint32(kv.v))
	}
	h.float("llama.rope.freq_base", 10000)
	h.float("llama.attention.layer_norm_rms_epsilon", 1e-5)
	h.text("tokenizer.ggml.model", "gpt2")
	h.text("tokenizer.ggml.pre", "smollm")
	h.texts("tokenizer.ggml.tokens", v.tokens)
	h.numbers("tokenizer.ggml.token_type", v.kinds)
	h.texts("tokenizer.ggml.merges", v.merges)
	h.number("tokenizer.ggml.bos_token_id", 1)
	h.number("tokenizer.ggml.eos_token_id", uint32(c.endOfTurn()))
	h.number("tokenizer.ggml.unknown_token_id", 0)
	h.number("tokenizer.ggml.padding_token_id", 2)
	h.flag("tokenizer.ggml.add_bos_token", false)
	h.text("tokenizer.chat_template", Template)
}
