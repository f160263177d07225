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
	"errors"
	"fmt"
	"math"
	"strings"
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
	// features are what the chat template of the model can do. They are not part
	// of the identity of the record. Valid values are:
	// - Chat: it renders conversations.
	// - Tools: it renders definitions of tools, in a format of calls that engines
	//   know.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4
	Features []Feature `json:"features,omitempty"`
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

// Feature is something that a model's chat template can do.
// +kubebuilder:validation:Enum=Chat;Tools
type Feature string

// The features.
const (
	Chat  Feature = "Chat"
	Tools Feature = "Tools"
)

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
func (r Record) DiskBytes() int64 { return add(r.Bytes(), r.AdapterBytes()) }

// AdapterBytes is the size of the files of all adapters, which is at least that of their
// weights in memory.
func (r Record) AdapterBytes() (n int64) {
	for _, a := range r.Adapters {
		n = add(n, a.Bytes())
	}
	return n
}

// add sums sizes that a Mac reported: they are not negative, and their sum has an end.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// MaxVouchers is how many entries vouchedBy has at most.
const MaxVouchers = 4

// VoucherPreview in vouchedBy has a preview take a record that no Mac reported as
// confirmed. No MacNode can have this name.
const VoucherPreview = "system:preview"

// ErrIncomplete is returned for a record without a value that the computation
// of memory or of the digest needs.
var ErrIncomplete = errors.New("model record is incomplete")

// Bytes returns the total size of the model's own files.
func (r Record) Bytes() int64 {
	var sum int64
	for _, f := range r.Files {
		sum = add(sum, f.Bytes)
	}
	return sum
}

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
