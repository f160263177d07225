// Package inspect reads what a source contains without downloading all of it, and
// returns a model record: files, sizes, digests, and the facts in the header of
// the weights.
//
// It owns how sources are read: file:// through the model root of package store,
// https:// and hf:// by a few range requests through the guarded client of
// package download, s3:// and oci:// in the same way, headers through
// metal/weights. It does not guess: a source that is absent, forbidden, damaged
// or of a kind that the engine does not run is a typed error with a condition
// reason and a sentence with the next step. It decides nothing about placement
// and downloads no weights.
//
// Start reading at Resolver.Resolve (one inspection) and Inspector.Run (all that
// are requested).
package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/agent/s3"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Limits of one look at a remote file.
const (
	remoteTime  = 2 * time.Minute
	maxFileSize = 8 << 40
	// remoteBytes is the most that is read of a remote header: several times
	// the largest vocabulary known.
	remoteBytes = 128 << 20
)

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Resolver looks at sources.
type Resolver struct {
	// Dir is where copies of headers and small files lie while a source is read; the system's
	// folder for temporary files if empty.
	Dir string
	// Free returns how many bytes of the disk of Dir are free and not reserved; nil if that is not
	// known.
	Free func() (int64, error)
	// Root is the Mac's model root.
	Root *store.Root
	// Client asks remote hosts.
	Client *download.Client
	// Hub lists the repositories of hf:// sources.
	Hub *hub.Hub
	// Token is the hub token that an order names, if it is on this Mac; nil where
	// there are none.
	Token func(ref string) (download.Bearer, bool)

	// headers that are read at once share one budget of memory, made once; probe has room
	// for one, whose templates are rendered.
	headers *weights.Budget
	probe   chan struct{}
	once    sync.Once

	// headerBytes is the most that is read of a remote header; 0 means remoteBytes.
	headerBytes int64
	// localTime bounds one look at files of this Mac, besides the time for their bytes; 0 means
	// remoteTime.
	localTime time.Duration
}

func (r *Resolver) mostHeader() int64 { return cmp.Or(r.headerBytes, remoteBytes) }

// Resolve looks at one source, and at those of its adapters, which must be adapters of that
// model. Its SHA-256 may be empty for file:// and is for hf://. Every failure but the
// context's own is a *download.Error.
func (r *Resolver) Resolve(ctx context.Context, order v1alpha1.Inspection) (rec model.Record, err error) {
	adapters, err := r.adapters(ctx, order)
	defer func() { err = errors.Join(err, adapters.close()) }()
	if err != nil {
		return model.Record{}, err
	}
	fits := func(f *weights.File) error { return adapters.check(ctx, r.budget(), f) }
	if rec, err = r.model(ctx, order, fits); err != nil {
		return model.Record{}, err
	}
	if len(adapters) > 0 && rec.Format != model.FormatSafetensors {
		return model.Record{}, failure(v1alpha1.ReasonUnsupportedModel, "adapters need a model in safetensors; choose such a repository of the model, or remove spec.adapters")
	}
	for _, a := range adapters {
		rec.Adapters = append(rec.Adapters, a.Adapter)
	}
	return rec, nil
}

// check judges an opened model.
type check func(*weights.File) error

// model looks at the source of the model.
func (r *Resolver) model(ctx context.Context, order v1alpha1.Inspection, fits check) (model.Record, error) {
	source, sha256 := order.Source, order.SHA256
	if sha256 != "" && !hexDigest.MatchString(sha256) {
		return model.Record{}, failure(v1alpha1.ReasonDigestMismatch, "model.sha256 is not 64 lower-case hex digits; write it as sha256sum prints it")
	}
	switch {
	case strings.HasPrefix(source, "file://"):
		return r.local(ctx, source, sha256, fits)
	case strings.HasPrefix(source, "https://"):
		return r.remote(ctx, source, sha256)
	case strings.HasPrefix(source, hub.Scheme):
		return r.fromHub(ctx, order, fits)
	case strings.HasPrefix(source, s3.Scheme):
		return r.fromBucket(ctx, order, fits)
	case strings.HasPrefix(source, oci.Scheme):
		return r.fromRegistry(ctx, order, fits)
	}
	return model.Record{}, failure(v1alpha1.ReasonSourceForbidden, "unknown source scheme; use file://, https://, hf://, s3:// or oci://")
}

func (r *Resolver) local(ctx context.Context, source, want string, fits check) (model.Record, error) {
	folder, err := r.Root.OpenFolder(source)
	if err != nil {
		return model.Record{}, err
	}
	if folder != nil {
		defer folder.Close()
		return r.localFolder(ctx, folder, source, want, fits)
	}
	l, err := r.Root.Open(source)
	if err != nil {
		return model.Record{}, err
	}
	defer l.Close()
	ctx, cancel := r.withinLocal(ctx, l.Size)
	defer cancel()
	found, err := r.readHeader(ctx, ending{ctx, l}, l.Size)
	if err != nil {
		return model.Record{}, err
	}
	got, err := r.Root.Sum(ctx, l, nil)
	if err != nil {
		return model.Record{}, readFault(err)
	}
	if want != "" && got != want {
		return model.Record{}, failure(v1alpha1.ReasonDigestMismatch, "the file on this Mac has SHA-256 %s, but model.sha256 is %s; correct one of them", got, want)
	}
	return record(source, l.Size, got, found), nil
}

// localFolder looks at a model in safetensors that lies in the model root.
func (r *Resolver) localFolder(ctx context.Context, l *store.LocalFolder, source, want string, fits check) (model.Record, error) {
	if want != "" {
		return model.Record{}, failure(v1alpha1.ReasonSourceForbidden, "model.sha256 applies to a single file, but %s is a folder; remove model.sha256", source)
	}
	ctx, cancel := r.withinLocal(ctx, bytesOf(l))
	defer cancel()
	found, err := r.readFolder(ctx, l.Path(), fits)
	if err != nil {
		return model.Record{}, err
	}
	sums, err := r.Root.SumFolder(ctx, l, nil)
	if err != nil {
		return model.Record{}, readFault(err)
	}
	rec := l.Record(source, sums)
	rec.Facts, rec.Features = found.facts, found.features
	return rec, nil
}

func (r *Resolver) remote(ctx context.Context, source, sha256 string) (model.Record, error) {
	if sha256 == "" {
		return model.Record{}, failure(v1alpha1.ReasonSourceForbidden, "an https:// source needs model.sha256 to verify the download; set it to the file's digest")
	}
	ctx, cancel := within(ctx)
	defer cancel()
	get := func(header http.Header) (*http.Response, error) { return r.Client.Get(ctx, source, header) }
	f, err := openRemote(get, r.mostHeader())
	if err != nil {
		return model.Record{}, err
	}
	defer f.close()
	found, err := r.readHeader(ctx, f, f.size)
	if err != nil {
		return model.Record{}, err
	}
	return record(source, f.size, sha256, found), nil
}

func record(source string, size int64, sha256 string, found contents) model.Record {
	files := []model.File{{Path: store.SingleFile, Bytes: size, SHA256: sha256}}
	return model.Record{Source: source, Digest: model.DigestOf(files), Format: model.FormatGGUF, Files: files, Facts: found.facts, Features: found.features}
}

func (r *Resolver) budget() *weights.Budget {
	r.once.Do(r.begin)
	return r.headers
}

func (r *Resolver) probing() chan struct{} {
	r.once.Do(r.begin)
	return r.probe
}

func (r *Resolver) begin() {
	r.headers, r.probe = weights.NewBudgetFor(atOnce+1), make(chan struct{}, 1) // one for templates
}

// readHeader reads the header of a GGUF file, and the templates in it.
func (r *Resolver) readHeader(ctx context.Context, src io.ReaderAt, size int64) (c contents, err error) {
	header, release, err := r.budget().ReadHeader(src, size)
	if err != nil {
		return c, explain(err)
	}
	defer release()
	if c.facts, err = header.Facts(); err != nil {
		return c, explain(err)
	}
	if !hub.Presentable(c.facts.Name) {
		c.facts.Name = "" // it is only for people
	}
	if c.facts.TaskOf() == model.Generate {
		c.features, err = r.features(ctx, 0, func() (chat.Configuration, error) { return chat.ReadGGUF(header.Metadata) })
	}
	return c, err
}

// explain gives what the header reader says its reason.
func explain(err error) error {
	var typed *download.Error
	switch {
	case errors.As(err, &typed):
		return typed // a remote file could not be read
	case errors.Is(err, weights.ErrUnsupported):
		return &download.Error{Reason: v1alpha1.ReasonUnsupportedModel, Message: "the engine does not support this model; choose another file", Err: err}
	case errors.Is(err, weights.ErrNotGGUF):
		return &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: "the source is not a model file; use a .gguf file", Err: err}
	case errors.Is(err, weights.ErrTruncated):
		return &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: "the model file is truncated; copy or publish the complete file again", Err: err}
	case errors.Is(err, weights.ErrInvalid), errors.Is(err, weights.ErrMissing), errors.Is(err, model.ErrIncomplete):
		return &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: "the model file is damaged or incomplete; choose another file", Err: err}
	}
	return readFault(err)
}

// readFault is for bytes that could not be read.
func readFault(err error) error {
	var typed *download.Error
	if errors.As(err, &typed) {
		return typed
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "cannot read the source; retrying", Err: err}
}

func failure(reason, format string, args ...any) *download.Error {
	return &download.Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
