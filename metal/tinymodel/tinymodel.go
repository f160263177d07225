// Package tinymodel writes random models of the families that the engine runs,
// so that tests and benchmarks need no download: as GGUF files, and as folders
// in the layout of Hugging Face or MLX, with a real byte-level BPE vocabulary
// of all 256 bytes and some merges, a ChatML template, and weights that depend
// on the seed alone. Any size can be written; data is streamed.
//
// It owns the smallest honest model, the shapes that benchmarks run, and the
// cases whose logits test/oracle/goldens/tiny records. It refuses sizes that no engine
// would load. The import law keeps it out of the product: tests, test and hack alone
// import it.
//
// Start reading at Config, then Write and WriteFolder.
package tinymodel

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"metalfleet.dev/metalfleet/metal/weights"
)

// Family is the architecture of a model.
type Family string

// The families. Mistral is Llama with an attention window, and a folder alone
// can say so.
const (
	Gemma3 Family = "gemma3_text"
	// GPTOSS is only written as folders: as published, with experts in mxfp4,
	// or as MLX converts it.
	GPTOSS  Family = "gpt_oss"
	Llama   Family = "llama"
	Mistral Family = "mistral"
	// Ministral3 is Llama with a query scale that grows with the position;
	// folders only.
	Ministral3 Family = "ministral3"
	Qwen2      Family = "qwen2"
	Qwen3      Family = "qwen3"
	// Qwen3MoE is Qwen3 with experts.
	Qwen3MoE Family = "qwen3_moe"
	// Qwen3Next and Qwen35 are hybrids, of which folders alone are written; the
	// latter is qwen3_5_moe with experts.
	Qwen3Next Family = "qwen3_next"
	Qwen35    Family = "qwen3_5"
)

func families() []Family {
	return []Family{Gemma3, GPTOSS, Llama, Mistral, Ministral3, Qwen2, Qwen3, Qwen35, Qwen3MoE, Qwen3Next}
}

// qwen reports whether a family splits text as Qwen does.
func (f Family) qwen() bool { return f == Qwen2 || f == Qwen3 || f == Qwen3MoE || f.hybrid() }

// Config describes the model to write. Zero values mean those of Default.
type Config struct {
	Seed        uint64
	Name        string
	Family      Family
	Layers      int
	Hidden      int
	FeedForward int
	QueryHeads  int
	KVHeads     int
	HeadSize    int
	Context     int
	// Vocabulary counts tokens; it is filled up with reserved ones.
	Vocabulary int
	// Merged fills it up with merges instead, each one letter longer than a token
	// before it: a tokenizer then takes the memory that a real one does.
	Merged bool
	// Words fills it up with random words, half of them with a blank in front: a mask of a
	// constraint then takes the work that a real one does.
	Words bool
	// NormEps is added under the root of every norm.
	NormEps float64
	// Type of the matrices of a GGUF file; its norms are always F32.
	Type weights.Type
	// Finer is the type of the embedding, of values and of what leads out of the
	// feed-forward, as in the mixed files of llama.cpp; 0 means Type.
	Finer weights.Type
	// Untied adds a separate output head.
	Untied bool
	// Endless makes a model that never ends its turn by itself: end of turn is
	// the last token, whose logit is always 0. Needs a tied head.
	Endless bool
	// Theta is the base of the rotary frequencies.
	Theta float64
	// Scaling stretches positions.
	Scaling Scaling
	// Growth is the coefficient of Ministral's query scale, from
	// Scaling.Original on.
	Growth float64
	// RopeFactors writes one frequency divisor per rotary pair: 1, 2, 3 and so
	// on. GGUF only.
	RopeFactors bool
	// Window is the number of latest positions that a token sees. For Mistral,
	// Gemma and GPT-OSS only; in GPT-OSS every second layer has it, starting
	// with the first.
	Window int
	// Pattern lets every so-manieth layer of a Gemma see everything; 0 means 6.
	Pattern int
	// LocalTheta is Theta of a Gemma's layers under the window; 0 means 10,000.
	LocalTheta float64
	// QueryScalar: a Gemma divides scores by its square root; 0 means HeadSize,
	// which a GGUF file always implies.
	QueryScalar int
	// Experts of a mixture, required in families of mixtures and not allowed in
	// others. Only folders can have dense layers or Unnormalized.
	Experts Experts
	// Hybrid describes the recurrent layers of a hybrid.
	Hybrid Hybrid
	// Drafts is its draft head.
	Drafts Drafts
	// NormSpread makes norm weights uniform in 1-NormSpread to 1+NormSpread,
	// and is the deviation of biases; 0 makes them all 1, and 0.
	NormSpread float64
	// Script determines the model's output; nil leaves it to random weights.
	Script *Script
	// Dictation lets the chat template determine the model's output.
	Dictation *Dictation
}

// Experts are those of every Step-th layer (0: of every one) but the Dense ones.
type Experts struct {
	Count, PerToken, FeedForward int
	// Unnormalized shares add up to less than one.
	Unnormalized bool
	Step         int
	Dense        []int
	// Shared is the width of one more, which every token goes through; only in
	// hybrids, and there it must be.
	Shared int
}

// in says whether a layer has experts.
func (e Experts) in(layer int) bool {
	return e.Count > 0 && (layer+1)%max(1, e.Step) == 0 && !slices.Contains(e.Dense, layer)
}

// Scaling is the rope scaling, with the names of Hugging Face's rope_scaling;
// the zero value means none.
type Scaling struct {
	// Kind is linear, llama3 or yarn.
	Kind   string  `json:"rope_type"`
	Factor float64 `json:"factor"`
	// Original is the trained context; not for linear.
	Original int `json:"original_max_position_embeddings,omitempty"`
	// Low and High bound the band of wavelengths that llama3 smooths.
	Low  float64 `json:"low_freq_factor,omitempty"`
	High float64 `json:"high_freq_factor,omitempty"`
	// Fractional keeps the edges of yarn's band unrounded, between pairs.
	Fractional bool `json:"-"`
}

// Default is a model of about 700 kB that runs thousands of tokens a second.
func Default() Config {
	return Config{
		Seed: 1, Name: "tiny", Family: Llama, Layers: 2, Hidden: 64, FeedForward: 128, QueryHeads: 4, KVHeads: 2, HeadSize: 16,
		Context: 512, Vocabulary: 512, NormEps: 1e-5, Type: weights.Q4_1, Theta: 10000,
	}
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
	for _, f := range []struct{ v, def *float64 }{{&c.Theta, &d.Theta}, {&c.NormEps, &d.NormEps}} {
		if *f.v == 0 {
			*f.v = *f.def
		}
	}
	if c.Name == "" {
		c.Name = d.Name
	}
	if c.Family == Gemma3 {
		c.Pattern, c.QueryScalar, c.LocalTheta = cmp.Or(c.Pattern, 6), cmp.Or(c.QueryScalar, c.HeadSize), cmp.Or(c.LocalTheta, 10000)
	}
	if c.Family == "" {
		c.Family = d.Family
	}
	return c
}

func (c Config) validate(vocabulary int) error {
	switch {
	case !slices.Contains(families(), c.Family):
		return fmt.Errorf("tiny model: family %q is unknown, want one of %v", c.Family, families())
	case c.Family == GPTOSS && (c.Window == 0 || c.Experts.FeedForward != c.FeedForward || c.Experts.Step != 0 || c.Experts.Dense != nil || c.Experts.Unnormalized):
		return errors.New("tiny model: a GPT-OSS has a window, and experts of its whole width in every layer")
	case c.Family == Gemma3 && c.Window == 0 || c.Family != Gemma3 && (c.Pattern != 0 || c.QueryScalar != 0 || c.LocalTheta != 0):
		return fmt.Errorf("tiny model: a Gemma has a window, and %s has no pattern, query scalar or second theta", c.Family)
	case (c.Growth != 0) != (c.Family == Ministral3) || c.Growth != 0 && c.Scaling.Original == 0:
		return fmt.Errorf("tiny model: a %s cannot have a query scale of %v after %d positions", c.Family, c.Growth, c.Scaling.Original)
	case c.Window != 0 && c.Family != Mistral && c.Family != Gemma3 && c.Family != GPTOSS:
		return fmt.Errorf("tiny model: %s has no attention window", c.Family)
	case c.Family == Qwen2 && c.QueryHeads*c.HeadSize != c.Hidden:
		return fmt.Errorf("tiny model: %d heads of %d are not the %d wide ones of a %s", c.QueryHeads, c.HeadSize, c.Hidden, c.Family)
	case c.Hidden%weights.GroupSize != 0 || c.FeedForward%weights.GroupSize != 0 || c.QueryHeads*c.HeadSize%weights.GroupSize != 0:
		return fmt.Errorf("tiny model: widths %d, %d and %d must be multiples of %d", c.Hidden, c.FeedForward, c.QueryHeads*c.HeadSize, weights.GroupSize)
	case !c.validHybrid():
		return c.errHybrid()
	case !c.validDrafts():
		return c.errDrafts()
	case !c.Family.hybrid() && (c.Experts.Count > 0) != (c.Family == Qwen3MoE || c.Family == GPTOSS) || c.Experts.Count < c.Experts.PerToken || c.Experts.FeedForward%weights.GroupSize != 0:
		return fmt.Errorf("tiny model: %s with experts %+v cannot be", c.Family, c.Experts)
	case c.Layers < 1 || c.KVHeads < 1 || c.QueryHeads%c.KVHeads != 0 || c.HeadSize%2 != 0:
		return fmt.Errorf("tiny model: %d layers, %d heads over %d of size %d cannot be", c.Layers, c.QueryHeads, c.KVHeads, c.HeadSize)
	case c.Vocabulary < vocabulary || c.Endless && c.Vocabulary == vocabulary:
		return fmt.Errorf("tiny model: vocabulary of %d, want at least %d, and one more for a model without end", c.Vocabulary, vocabulary)
	case c.Endless && c.Untied:
		return errors.New("tiny model: one without end needs a tied head")
	}
	if err := c.validDictation(); err != nil {
		return err
	}
	return c.validScript()
}

// Write writes a GGUF file to path, whole or not at all.
func Write(path string, c Config) error {
	return whole(path, func(f *os.File) error { return WriteTo(f, c) })
}

// whole writes a file under another name and moves it to path once it is done.
func whole(path string, write func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tinymodel-*")
	if err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f); err != nil {
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

// WriteTo streams a GGUF file.
func WriteTo(w io.Writer, c Config) error {
	c = c.filled()
	vocab := newVocabulary()
	if err := c.validate(len(vocab.tokens)); err != nil {
		return err
	}
	if c.Family.hybrid() {
		return fmt.Errorf("tiny model: %s is written as a folder alone", c.Family)
	}
	vocab.fill(c)
	h := new(header)
	if err := c.metadata(h, vocab); err != nil {
		return err
	}
	var tensors []block
	for _, t := range c.tensors() {
		b, err := t.block(c)
		if err != nil {
			return err
		}
		tensors = append(tensors, b)
	}
	out := bufio.NewWriterSize(w, 1<<20)
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

func (c Config) template() string {
	switch {
	case c.Script != nil:
		return c.Script.Template
	case c.Dictation != nil:
		return c.Dictation.template()
	}
	return Template
}

// Template is the ChatML template the models carry, but those with a script.
const Template = `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a tiny model.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}`
