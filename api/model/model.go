// Package model describes what a model is, apart from where it runs: the
// record that an inspection brings back (files, sizes, digests) and the facts
// read from the file headers (layers, heads, bytes).
//
// It owns the vocabulary that placement, the node agent and the engine share,
// and the digest that names a set of weights everywhere (store, status,
// caches). It refuses to guess: a fact that a header does not state is left
// zero, and Facts.Validate names it. It imports the standard library alone.
//
// Start reading at Record.
//
// +kubebuilder:object:generate=true
package model

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strings"
)

// Format is how weights lie on disk.
// +kubebuilder:validation:Enum=gguf;safetensors
type Format string

const (
	// FormatGGUF is one self-contained file: weights, tokenizer, template.
	FormatGGUF Format = "gguf"
	// FormatSafetensors is a folder as MLX and Hugging Face write it.
	FormatSafetensors Format = "safetensors"
)

// Record is what an inspection found behind a source: which files, how large,
// with which digests, and what their headers say.
type Record struct {
	// source is where the files come from, as the user named it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// commit is that of a hub's repository, which source's revision meant when it
	// was looked at; left out for other sources.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// digest names this set of files: "sha256:" and the hex digest over the
	// sorted paths, sizes and digests of the files.
	// +required
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// format is how the weights lie on disk.
	// +required
	Format Format `json:"format"`
	// files are the files that make the model, sorted by path.
	// +required
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Files []File `json:"files"`
	// facts are read from the headers of the files.
	// +required
	Facts Facts `json:"facts"`
}

// File is one file of a model.
type File struct {
	// path of the file inside the model's folder; slashes, never absolute.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// bytes is the size of the file.
	// +required
	// +kubebuilder:validation:Minimum=1
	Bytes int64 `json:"bytes"`
	// sha256 is the hex digest of the file's content.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
}

// Facts are the dimensions that decide how much memory a model needs and
// whether an engine can run it. Zero means "the header did not say".
type Facts struct {
	// architecture is the family, as the file names it ("llama", "qwen3").
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Architecture string `json:"architecture"`
	// name is the model's own name, if the file carries one.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
	// task is what the model is made for: Embed turns texts into vectors, Rerank
	// scores documents for a query. Left out for a model that writes text.
	// +optional
	Task Task `json:"task,omitempty"`
	// quantization is the dominant weight type ("Q4_1", "BF16", "affine 4-bit group 64").
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Quantization string `json:"quantization,omitempty"`
	// layers is the number of transformer blocks.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Layers int64 `json:"layers,omitempty"`
	// growingLayers is the number of layers whose cache grows with every
	// token (attention without a window). Equal to layers for a plain decoder;
	// growing, window, recurrent and encoder layers together are all layers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GrowingLayers int64 `json:"growingLayers,omitempty"`
	// windowLayers is the number of layers whose attention sees the last
	// windowTokens alone.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowLayers int64 `json:"windowLayers,omitempty"`
	// windowTokens is how many latest tokens a window layer sees.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowTokens int64 `json:"windowTokens,omitempty"`
	// encoderLayers is the number of layers whose tokens see one another all at
	// once, and that keep nothing of a text that was read.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EncoderLayers int64 `json:"encoderLayers,omitempty"`
	// recurrentLayers is the number of layers that keep a state of constant
	// size for each sequence instead of keys and values.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentLayers int64 `json:"recurrentLayers,omitempty"`
	// recurrentStateBytes is what the states of all recurrent layers take for
	// one sequence.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentStateBytes int64 `json:"recurrentStateBytes,omitempty"`
	// recurrentSize is the width of what a recurrent layer computes for a token:
	// queries, keys, values and the gate of its output.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentSize int64 `json:"recurrentSize,omitempty"`
	// hiddenSize is the width of the residual stream.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HiddenSize int64 `json:"hiddenSize,omitempty"`
	// feedForwardSize is the inner width of the feed-forward block; of one expert
	// where every block is a mixture of experts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FeedForwardSize int64 `json:"feedForwardSize,omitempty"`
	// experts is the number of experts in a block that is a mixture; all of them
	// are in memory. Left out for a model without any.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Experts int64 `json:"experts,omitempty"`
	// expertsPerToken is how many of them a token goes through.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ExpertsPerToken int64 `json:"expertsPerToken,omitempty"`
	// expertFeedForwardSize is the inner width of one expert.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ExpertFeedForwardSize int64 `json:"expertFeedForwardSize,omitempty"`
	// queryHeads is the number of attention heads.
	// +optional
	// +kubebuilder:validation:Minimum=0
	QueryHeads int64 `json:"queryHeads,omitempty"`
	// keyValueHeads is the number of key and value heads (grouped-query attention).
	// +optional
	// +kubebuilder:validation:Minimum=0
	KeyValueHeads int64 `json:"keyValueHeads,omitempty"`
	// headSize is the width of one head.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HeadSize int64 `json:"headSize,omitempty"`
	// vocabularySize is the number of tokens the output head scores.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VocabularySize int64 `json:"vocabularySize,omitempty"`
	// contextTokens is the longest context the model was trained for.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ContextTokens int64 `json:"contextTokens,omitempty"`
	// keyValueElementBytes is the width of one stored key or value element as
	// the model was written: 4 where it means float32, 2 in half precision. A
	// back end may keep them wider.
	// +optional
	// +kubebuilder:validation:Minimum=0
	KeyValueElementBytes int64 `json:"keyValueElementBytes,omitempty"`
	// weightBytes is what the weights occupy as they lie in the file.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WeightBytes int64 `json:"weightBytes,omitempty"`
	// wideWeightBytes is what they occupy on a back end that keeps a bias beside
	// every scale, and numbers that GGUF means as float32 in float32, as MLX
	// does. Left out where that is weightBytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WideWeightBytes int64 `json:"wideWeightBytes,omitempty"`
}

// Task is what a model is made for.
// +kubebuilder:validation:Enum=Generate;Embed;Rerank
type Task string

// The tasks.
const (
	Generate Task = "Generate"
	Embed    Task = "Embed"
	Rerank   Task = "Rerank"
)

// TaskOf is the task of a model with these facts.
func (f Facts) TaskOf() Task {
	if f.Task == "" {
		return Generate
	}
	return f.Task
}

// SetTask sets the task, and leaves out that a model writes text, as records did
// before there were others.
func (f *Facts) SetTask(t Task) {
	if f.Task = t; t == Generate {
		f.Task = ""
	}
}

// ErrIncomplete says that a record lacks something that memory arithmetic or
// identity needs.
var ErrIncomplete = errors.New("model record is incomplete")

// Validate reports every dimension that is missing. A model whose dimensions
// are unknown cannot be admitted anywhere: unknown is never zero bytes.
func (f Facts) Validate() error {
	var missing []string
	for _, d := range []struct {
		name  string
		value int64
	}{
		{"layers", f.Layers}, {"hiddenSize", f.HiddenSize},
		{"feedForwardSize", f.FeedForwardSize}, {"queryHeads", f.QueryHeads}, {"keyValueHeads", f.KeyValueHeads},
		{"headSize", f.HeadSize}, {"vocabularySize", f.VocabularySize}, {"contextTokens", f.ContextTokens},
		{"keyValueElementBytes", f.KeyValueElementBytes}, {"weightBytes", f.WeightBytes},
	} {
		if d.value <= 0 {
			missing = append(missing, d.name)
		}
	}
	if f.Architecture == "" {
		missing = append(missing, "architecture")
	}
	if f.Experts > 0 && (f.ExpertsPerToken <= 0 || f.ExpertsPerToken > f.Experts) {
		missing = append(missing, "expertsPerToken")
	}
	if f.Experts > 0 && f.ExpertFeedForwardSize <= 0 {
		missing = append(missing, "expertFeedForwardSize")
	}
	if f.WindowLayers > 0 && f.WindowTokens <= 0 {
		missing = append(missing, "windowTokens")
	}
	if f.RecurrentLayers > 0 && f.RecurrentStateBytes <= 0 {
		missing = append(missing, "recurrentStateBytes")
	}
	if f.RecurrentLayers > 0 && f.RecurrentSize <= 0 {
		missing = append(missing, "recurrentSize")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: unknown %s", ErrIncomplete, strings.Join(missing, ", "))
	}
	return f.validateLayers()
}

// validateLayers wants every layer to be of exactly one kind of cache.
func (f Facts) validateLayers() error {
	known := int64(0)
	for _, n := range []int64{f.GrowingLayers, f.WindowLayers, f.RecurrentLayers, f.EncoderLayers} {
		if n < 0 || n > f.Layers {
			return fmt.Errorf("%w: %d growing, %d window, %d recurrent and %d encoder layers of %d", ErrIncomplete, f.GrowingLayers, f.WindowLayers, f.RecurrentLayers, f.EncoderLayers, f.Layers)
		}
		known += n
	}
	if known != f.Layers {
		return fmt.Errorf("%w: growingLayers, windowLayers, recurrentLayers and encoderLayers say what %d layers keep, there are %d", ErrIncomplete, known, f.Layers)
	}
	if f.WideWeightBytes < 0 {
		return fmt.Errorf("%w: wideWeightBytes is %d", ErrIncomplete, f.WideWeightBytes)
	}
	return nil
}

// Bytes is the sum over the files.
func (r Record) Bytes() int64 {
	var sum int64
	for _, f := range r.Files {
		sum += f.Bytes
	}
	return sum
}

// DigestOf names a set of files by content: the SHA-256 over one line per
// file, sorted by path, holding its digest, size and path.
func DigestOf(files []File) string {
	sorted := append([]File(nil), files...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Path < sorted[j].Path })
	h := sha256.New()
	for _, f := range sorted {
		fmt.Fprintf(h, "%s %d %s\n", f.SHA256, f.Bytes, f.Path)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Validate checks a record that came over a wire: files present, paths that
// stay inside the model's folder, well-formed digests, and a digest that
// really is the one of the files.
func (r Record) Validate() error {
	if len(r.Files) == 0 {
		return fmt.Errorf("%w: no files", ErrIncomplete)
	}
	for _, f := range r.Files {
		if !LocalPath(f.Path) {
			return fmt.Errorf("model record: path %q leaves the model's folder", f.Path)
		}
		if f.Bytes <= 0 || !hexDigest.MatchString(f.SHA256) {
			return fmt.Errorf("%w: size or digest of %q", ErrIncomplete, f.Path)
		}
	}
	if want := DigestOf(r.Files); r.Digest != want {
		return fmt.Errorf("model record: digest %q does not match its files (%s)", r.Digest, want)
	}
	return nil
}

// LocalPath reports whether p is a relative slash path that stays below its
// folder: no empty or dot elements, no backslash, no NUL.
func LocalPath(p string) bool {
	if p == "" || strings.ContainsAny(p, "\\\x00") {
		return false
	}
	for _, e := range strings.Split(p, "/") {
		if e == "" || e == "." || e == ".." {
			return false
		}
	}
	return true
}
