// Package model describes a model independently of where it runs: the record
// that an inspection produces (files, sizes, digests) and the facts read from
// the file headers (layers, heads, sizes).
//
// It owns the vocabulary that placement, the agent and the engine share, and
// the digest that identifies a set of weights everywhere (store, status,
// caches). It does not guess: a fact that a header does not contain stays zero,
// and Facts.Validate reports it. It imports only the standard library.
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
	"unicode"
	"unicode/utf8"
)

// Format is the file format of weights.
// +kubebuilder:validation:Enum=gguf;safetensors
type Format string

const (
	// FormatGGUF is one self-contained file: weights, tokenizer and chat
	// template.
	FormatGGUF Format = "gguf"
	// FormatSafetensors is a folder as MLX and Hugging Face write it.
	FormatSafetensors Format = "safetensors"
)

// MaxRecordBytes bounds a Record, in bytes of JSON: 256 files with long names.
const MaxRecordBytes = 64 << 10

// Record is what the inspection of a model source found: the files with their
// sizes and digests, and the contents of their headers.
type Record struct {
	// source is the URL of the files, as in spec.model.source.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// commit is the commit that the revision of a Hugging Face repository
	// resolved to during the inspection. It is absent for other sources.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// digest identifies this set of files: "sha256:" and the hex digest of the
	// sorted paths, sizes and digests of the files.
	// +required
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// format is the file format of the weights. Valid values are:
	// - gguf: one self-contained file with weights, tokenizer and chat
	//   template.
	// - safetensors: a folder as MLX and Hugging Face write it.
	// +required
	Format Format `json:"format"`
	// files are the files of the model, sorted by path.
	// +required
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Files []File `json:"files"`
	// facts are the dimensions of the model, read from the headers of the
	// files.
	// +required
	Facts Facts `json:"facts"`
	// adapters are the adapters of the deployment.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Adapters []Adapter `json:"adapters,omitempty"`
	// vouchedBy are the MacNodes whose inspections found this record, as the
	// operator noted them when it accepted the model. A Mac that is not listed
	// downloads the files only if at least two are, or once two Macs report
	// the same. Macs do not report this field; what they put there is dropped.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MaxLength=64
	VouchedBy []string `json:"vouchedBy,omitempty"`
}

// Adapter is what the inspection of an adapter's source found.
type Adapter struct {
	// name is the name of the adapter.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// source is the URL of the files.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Source string `json:"source"`
	// commit is the commit of a Hugging Face repository.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{40}$`
	// +kubebuilder:validation:MaxLength=40
	Commit string `json:"commit,omitempty"`
	// digest identifies the files, as that of the model.
	// +required
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=71
	Digest string `json:"digest"`
	// files are the files of the adapter, sorted by path.
	// +required
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Files []File `json:"files"`
}

// Record is the record of the adapter's own files, which have no facts.
func (a Adapter) Record() Record {
	return Record{Source: a.Source, Commit: a.Commit, Digest: a.Digest, Format: FormatSafetensors, Files: a.Files}
}

// Shared reports whether the credentials for the source of a model are also those for
// that of an adapter: a server gets only what was meant for it. Both are on the hub, in
// the same registry, or in buckets of the same endpoint and region.
func (a Adapter) Shared(source string) bool {
	scheme, rest, _ := strings.Cut(source, "://")
	own, ours, _ := strings.Cut(a.Source, "://")
	switch {
	case scheme != own:
		return false
	case scheme == "oci":
		host, _, _ := strings.Cut(rest, "/")
		other, _, _ := strings.Cut(ours, "/")
		return host == other
	case scheme == "s3":
		_, query, _ := strings.Cut(rest, "?")
		_, other, _ := strings.Cut(ours, "?")
		return query == other
	}
	return scheme == "hf"
}

// SameFiles reports whether two adapters have the same files from the same source.
func (a Adapter) SameFiles(b Adapter) bool { return a.Source == b.Source && a.Digest == b.Digest }

// Bytes is the size of the files.
func (a Adapter) Bytes() int64 { return a.Record().Bytes() }

// Parts are the records of everything that a replica needs on its Mac's disk: of the model
// itself, then of its adapters. Each part is stored on its own, under its digest.
func (r Record) Parts() []Record {
	out := []Record{r}
	for _, a := range r.Adapters {
		out = append(out, a.Record())
	}
	return out
}

// DiskBytes is the size of the files of all parts.
func (r Record) DiskBytes() int64 { return r.Bytes() + r.AdapterBytes() }

// AdapterBytes is the size of the files of all adapters, which is at least that of their
// weights in memory.
func (r Record) AdapterBytes() (n int64) {
	for _, a := range r.Adapters {
		n += a.Bytes()
	}
	return n
}

// MaxVouchers is how many entries vouchedBy has at most.
const MaxVouchers = 4

// VoucherPreview in vouchedBy has a preview take a record that no Mac reported as
// confirmed. No MacNode can have this name.
const VoucherPreview = "system:preview"

// File is one file of a model.
type File struct {
	// path is the path of the file in the model's folder, relative and with
	// slashes.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// bytes is the size of the file, in bytes.
	// +required
	// +kubebuilder:validation:Minimum=1
	Bytes int64 `json:"bytes"`
	// sha256 is the SHA-256 digest of the file, in lower-case hex.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
}

// Facts are the dimensions that determine how much memory a model needs and
// whether an engine can run it. Zero means that the headers do not contain the
// value.
type Facts struct {
	// architecture is the model architecture as the file names it, for example
	// llama or qwen3.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Architecture string `json:"architecture"`
	// name is the model's own name. It is absent when the file does not contain
	// one.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
	// task is what the model is for. Default: Generate. Valid values are:
	// - Generate: generates text.
	// - Embed: converts texts to embedding vectors.
	// - Rerank: scores documents for a query.
	// +optional
	Task Task `json:"task,omitempty"`
	// quantization is the dominant weight type, for example "Q4_1", "BF16" or
	// "affine 4-bit group 64".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Quantization string `json:"quantization,omitempty"`
	// layers is the number of transformer blocks.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Layers int64 `json:"layers,omitempty"`
	// growingLayers is the number of layers whose KV cache grows with every
	// token (attention without a sliding window). It equals layers for a plain
	// decoder. The growing, window, recurrent, stateless and encoder layers add
	// up to all layers.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GrowingLayers int64 `json:"growingLayers,omitempty"`
	// windowLayers is the number of layers with sliding-window attention over
	// the last windowTokens tokens.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowLayers int64 `json:"windowLayers,omitempty"`
	// windowTokens is the size of the sliding window, in tokens.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowTokens int64 `json:"windowTokens,omitempty"`
	// encoderLayers is the number of layers with bidirectional attention, which
	// keep no KV cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EncoderLayers int64 `json:"encoderLayers,omitempty"`
	// statelessLayers is the number of layers that keep nothing of a sequence:
	// those that read the KV cache of an earlier layer, and those without
	// attention.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StatelessLayers int64 `json:"statelessLayers,omitempty"`
	// recurrentLayers is the number of layers that keep a state of constant
	// size for each sequence instead of keys and values.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentLayers int64 `json:"recurrentLayers,omitempty"`
	// recurrentStateBytes is the size of the states of all recurrent layers for
	// one sequence, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentStateBytes int64 `json:"recurrentStateBytes,omitempty"`
	// recurrentSize is the width of the activations that a recurrent layer
	// computes for a token: queries, keys, values and the output gate.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RecurrentSize int64 `json:"recurrentSize,omitempty"`
	// hiddenSize is the width of the residual stream.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HiddenSize int64 `json:"hiddenSize,omitempty"`
	// feedForwardSize is the inner width of the feed-forward block, or of one
	// expert when every block is a mixture of experts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FeedForwardSize int64 `json:"feedForwardSize,omitempty"`
	// experts is the number of experts in a mixture-of-experts block; all of
	// them are in memory. It is absent for other models.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Experts int64 `json:"experts,omitempty"`
	// expertsPerToken is the number of experts that process a token.
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
	// keyValueHeads is the number of key and value heads (grouped-query
	// attention).
	// +optional
	// +kubebuilder:validation:Minimum=0
	KeyValueHeads int64 `json:"keyValueHeads,omitempty"`
	// headSize is the width of one head.
	// +optional
	// +kubebuilder:validation:Minimum=0
	HeadSize int64 `json:"headSize,omitempty"`
	// growingElements is the number of elements that a growing layer keeps of each
	// token in its KV cache. It is absent when it equals 2 * keyValueHeads *
	// headSize.
	// +optional
	// +kubebuilder:validation:Minimum=0
	GrowingElements int64 `json:"growingElements,omitempty"`
	// windowElements is the same for a layer with a sliding window.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WindowElements int64 `json:"windowElements,omitempty"`
	// layerInputSize is the width of the per-layer embeddings of all layers
	// together, and of parallel residuals. It is absent for models without them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LayerInputSize int64 `json:"layerInputSize,omitempty"`
	// vocabularySize is the number of tokens in the output layer.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VocabularySize int64 `json:"vocabularySize,omitempty"`
	// contextTokens is the longest context, in tokens, that the model was
	// trained for.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ContextTokens int64 `json:"contextTokens,omitempty"`
	// keyValueElementBytes is the size of one stored key or value element, in
	// bytes, in the precision of the model: 4 for float32, 2 for half
	// precision. A back end may use a larger type.
	// +optional
	// +kubebuilder:validation:Minimum=0
	KeyValueElementBytes int64 `json:"keyValueElementBytes,omitempty"`
	// weightBytes is the size of the loaded weights, in bytes. It equals the
	// size in the file, except for GGUF types that are converted to a larger
	// type.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WeightBytes int64 `json:"weightBytes,omitempty"`
	// wideWeightBytes is the size of the loaded weights, in bytes, on a back
	// end such as MLX that stores a bias for every scale and keeps float32
	// values of GGUF in float32. It is absent when it equals weightBytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WideWeightBytes int64 `json:"wideWeightBytes,omitempty"`
	// visionPatches is the largest number of patches of an image. It is absent for a
	// model without image input, like all fields that begin with vision.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionPatches int64 `json:"visionPatches,omitempty"`
	// visionPatchElements is the number of values per patch that the vision
	// tower holds while it computes a layer.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionPatchElements int64 `json:"visionPatchElements,omitempty"`
	// visionHeads is the number of attention heads of the vision tower.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionHeads int64 `json:"visionHeads,omitempty"`
	// visionElements is the number of values that the tokens of the largest
	// image have for the decoder.
	// +optional
	// +kubebuilder:validation:Minimum=0
	VisionElements int64 `json:"visionElements,omitempty"`
}

// Sees reports whether the model has image input.
func (f Facts) Sees() bool { return f.VisionPatches > 0 }

// Task is what a model is for.
// +kubebuilder:validation:Enum=Generate;Embed;Rerank
type Task string

// The tasks.
const (
	Generate Task = "Generate"
	Embed    Task = "Embed"
	Rerank   Task = "Rerank"
)

// TaskOf returns the task of a model with these facts.
func (f Facts) TaskOf() Task {
	if f.Task == "" {
		return Generate
	}
	return f.Task
}

// SetTask sets the task. It stores Generate as the empty string, as records did
// before other tasks existed.
func (f *Facts) SetTask(t Task) {
	if f.Task = t; t == Generate {
		f.Task = ""
	}
}

// ErrIncomplete is returned for a record without a value that the computation
// of memory or of the digest needs.
var ErrIncomplete = errors.New("model record is incomplete")

// Validate returns an error that names every missing dimension. A model with
// unknown dimensions cannot be admitted anywhere, because unknown never means
// zero bytes.
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
	if f.VisionPatches > 0 && min(f.VisionPatchElements, f.VisionHeads, f.VisionElements) <= 0 {
		missing = append(missing, "visionPatchElements, visionHeads or visionElements")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: unknown %s", ErrIncomplete, strings.Join(missing, ", "))
	}
	return f.validateLayers()
}

// validateLayers checks that every layer has exactly one kind of cache.
func (f Facts) validateLayers() error {
	known := int64(0)
	for _, n := range []int64{f.GrowingLayers, f.WindowLayers, f.RecurrentLayers, f.EncoderLayers, f.StatelessLayers} {
		if n < 0 || n > f.Layers {
			return fmt.Errorf("%w: %d growing, %d window, %d recurrent, %d stateless and %d encoder layers of %d", ErrIncomplete, f.GrowingLayers, f.WindowLayers, f.RecurrentLayers, f.StatelessLayers, f.EncoderLayers, f.Layers)
		}
		known += n
	}
	if known != f.Layers {
		return fmt.Errorf("%w: growingLayers, windowLayers, recurrentLayers, statelessLayers and encoderLayers add up to %d, but the model has %d layers", ErrIncomplete, known, f.Layers)
	}
	if f.GrowingElements < 0 || f.WindowElements < 0 || f.LayerInputSize < 0 {
		return fmt.Errorf("%w: growingElements is %d, windowElements %d and layerInputSize %d", ErrIncomplete, f.GrowingElements, f.WindowElements, f.LayerInputSize)
	}
	if f.WideWeightBytes < 0 {
		return fmt.Errorf("%w: wideWeightBytes is %d", ErrIncomplete, f.WideWeightBytes)
	}
	return nil
}

// Bytes returns the total size of the model's own files.
func (r Record) Bytes() int64 {
	var sum int64
	for _, f := range r.Files {
		sum += f.Bytes
	}
	return sum
}

// DigestOf returns the digest of a set of files: the SHA-256 digest of one line
// per file, sorted by path, with the file's digest, size and path.
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

// Validate checks a record that was received from a peer: it has files, their
// paths stay inside the model's folder, their digests are well-formed, and the
// digest of the record matches the files.
func (r Record) Validate() error {
	if len(r.Files) == 0 {
		return fmt.Errorf("%w: no files", ErrIncomplete)
	}
	for _, f := range r.Files {
		if !LocalPath(f.Path) {
			return fmt.Errorf("model record: path %q is outside the model's folder", f.Path)
		}
		if f.Bytes <= 0 || !hexDigest.MatchString(f.SHA256) {
			return fmt.Errorf("%w: invalid size or digest of %q", ErrIncomplete, f.Path)
		}
	}
	if a, b, found := r.clash(); found {
		return fmt.Errorf("model record: %q and %q are one file on a Mac's disk; rename one of them", a, b)
	}
	if want := DigestOf(r.Files); r.Digest != want {
		return fmt.Errorf("model record: digest %q does not match its files (%s)", r.Digest, want)
	}
	for _, a := range r.Adapters {
		if err := a.Record().Validate(); err != nil {
			return fmt.Errorf("adapter %q: %w", a.Name, err)
		}
	}
	return nil
}

// clash finds two files that are one file on a Mac's disk.
func (r Record) clash() (a, b string, found bool) {
	paths := make([]string, len(r.Files))
	for i, f := range r.Files {
		paths[i] = f.Path
	}
	return Clash(paths)
}

// Clash finds two paths that a Mac's disk, which ignores case and Unicode normalization,
// may take for one. It is strict with names outside ASCII: they are the same if they
// differ only there.
func Clash(paths []string) (a, b string, found bool) {
	seen := map[string]string{}
	for _, p := range paths {
		key := onDisk(p)
		if other, there := seen[key]; there {
			return other, p, true
		}
		seen[key] = p
	}
	return "", "", false
}

// onDisk is a path without what a Mac's disk ignores. Each run of letters outside ASCII,
// with an ASCII letter that they change, becomes one character: without tables nothing is
// known of how they compose.
func onDisk(p string) string {
	p = strings.NewReplacer("ß", "ss", "ẞ", "ss", "ﬀ", "ff", "ﬁ", "fi", "ﬂ", "fl", "ﬃ", "ffi", "ﬄ", "ffl", "ﬅ", "st", "ﬆ", "st",
		"\u037e", ";", "\u1fef", "`").Replace(p)
	var out []rune
	for _, r := range strings.ToLower(strings.ToUpper(p)) {
		if r < utf8.RuneSelf {
			out = append(out, r)
			continue
		}
		last := len(out) - 1
		if unicode.Is(unicode.M, r) && last >= 0 && out[last] != '/' && out[last] != utf8.RuneError {
			out = out[:last]
			last--
		}
		if last < 0 || out[last] != utf8.RuneError {
			out = append(out, utf8.RuneError)
		}
	}
	return string(out)
}

// LocalPath reports whether p is a relative slash path that stays inside its
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
