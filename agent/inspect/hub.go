package inspect

import (
	"context"
	"crypto/sha1" //nolint:gosec // git's names of files
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Bounds of what is fetched whole while a hub is looked at: the files whose
// digest the hub does not say, none of which are weights.
const (
	maxSmallFile  = 64 << 20
	maxSmallFiles = 160 << 20
)

// fromHub looks at a repository of a hub.
func (r *Resolver) fromHub(ctx context.Context, order v1alpha1.Inspection, fits check) (model.Record, error) {
	if order.SHA256 != "" {
		return model.Record{}, failure(v1alpha1.ReasonSourceForbidden, "model.sha256 applies to a single file; remove it and set a commit in model.revision")
	}
	src, err := hub.Parse(order.Source, order.Revision)
	if err != nil {
		return model.Record{}, err
	}
	token, err := r.token(order.TokenRef)
	if err == nil {
		err = hub.CheckToken(token)
	}
	if err != nil {
		return model.Record{}, err
	}
	ctx, cancel := within(ctx)
	defer cancel()
	l, err := r.Hub.List(ctx, src, token)
	if err != nil {
		return model.Record{}, err
	}
	c, err := hub.Choose(l.Files, order.Files)
	if err != nil {
		return model.Record{}, err
	}
	look := &hubLook{resolver: r, copied: new(copied), fits: fits, who: "the hub", get: func(e hub.Entry, header http.Header) (*http.Response, error) {
		return r.Hub.File(ctx, src, l.Commit, e.Path, token, header)
	}}
	rec := model.Record{Source: order.Source, Commit: l.Commit, Format: c.Format}
	return look.at(ctx, rec, c, l.Files)
}

// at looks at the chosen files of all, and completes the record.
func (h *hubLook) at(ctx context.Context, rec model.Record, c hub.Choice, all []hub.Entry) (_ model.Record, err error) {
	var found contents
	if c.Format == model.FormatGGUF {
		rec.Files, found, err = h.single(ctx, c.Files[0])
	} else {
		rec.Files, found, err = h.folder(ctx, c, all)
	}
	rec.Facts, rec.Features = found.facts, found.features
	rec.Digest = model.DigestOf(rec.Files)
	return rec, err
}

// token returns the hub token that an inspection names. Without it no request is
// made: a hub would report that there is no such repository.
func (r *Resolver) token(ref string) (download.Bearer, error) {
	if ref == "" {
		return "", nil
	}
	if r.Token != nil {
		if token, ok := r.Token(ref); ok {
			return token, nil
		}
	}
	return "", MissingToken()
}

// MissingToken is the error for a hub token that has not reached this Mac.
func MissingToken() error {
	return &download.Error{Reason: v1alpha1.ReasonTokenMissing, Transient: true, Status: http.StatusUnauthorized,
		Message: "waiting for the token of model.secretRef, which the operator puts into this Mac's Secret"}
}

// hubLook is one look at a repository at a commit, or at a folder of a bucket.
type hubLook struct {
	resolver *Resolver
	// fits judges a model in safetensors.
	fits check
	// who is asked, and get asks for a file.
	who    string
	get    func(e hub.Entry, header http.Header) (*http.Response, error)
	copied *copied
}

// copied is what of a source lies in a temporary folder, or of all adapters of an order: the bytes
// of files that were fetched whole, and of the headers of others.
type copied struct{ whole, headers int64 }

// single reads the header of one GGUF file.
func (h *hubLook) single(ctx context.Context, e hub.Entry) ([]model.File, contents, error) {
	if e.SHA256 == "" {
		return nil, contents{}, failure(v1alpha1.ReasonInvalidModel, "the hub does not provide the SHA-256 of %s, which is not in large file storage; choose another file", e.Path)
	}
	f, err := h.open(e)
	if err != nil {
		return nil, contents{}, err
	}
	defer f.close()
	found, err := h.resolver.readHeader(ctx, f, f.size)
	return []model.File{{Path: e.Path, Bytes: e.Bytes, SHA256: e.SHA256}}, found, err
}

// open reads a file from its start, and wants it to be as large as was listed.
func (h *hubLook) open(e hub.Entry) (*remoteFile, error) {
	f, err := openRemote(func(header http.Header) (*http.Response, error) { return h.get(e, header) }, h.resolver.mostHeader())
	if err != nil {
		return nil, err
	}
	if f.size != e.Bytes {
		f.close()
		return nil, failure(v1alpha1.ReasonSourceUnreachable, "%s lists %s with %d bytes but serves %d; contact its administrators", h.who, e.Path, e.Bytes, f.size)
	}
	return f, nil
}

// folder makes a copy of a model's folder that has everything but the numbers,
// and reads it as the engine does. files are all that the repository has.
func (h *hubLook) folder(ctx context.Context, c hub.Choice, files []hub.Entry) (out []model.File, found contents, err error) {
	dir, err := h.resolver.copyDir()
	if err != nil {
		return nil, found, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	known := map[string]model.File{}
	if first, ok := c.Modules(); ok { // it lists the other files
		if first.Bytes > weights.MaxModulesBytes {
			return nil, found, failure(v1alpha1.ReasonInvalidModel, "%s has over %d bytes; choose another repository", first.Path, weights.MaxModulesBytes)
		}
		if err := h.copyTo(dir, c.Folder, first, known); err != nil {
			return nil, found, err
		}
		if c, err = h.withModules(dir, c, files); err != nil {
			return nil, found, err
		}
	}
	for _, e := range c.Files {
		if err := h.copyTo(dir, c.Folder, e, known); err != nil {
			return nil, found, err
		}
		if f, ok := known[e.Path]; ok {
			out = append(out, f)
		}
	}
	found, err = h.resolver.readFolder(ctx, dir, h.fits)
	return out, found, err
}

// withModules adds the files of the modules that modules.json in dir lists.
func (h *hubLook) withModules(dir string, c hub.Choice, files []hub.Entry) (hub.Choice, error) {
	text, err := os.ReadFile(filepath.Join(dir, weights.ModulesFile))
	if errors.Is(err, fs.ErrNotExist) { // it is empty
		return c, nil
	}
	if err != nil {
		return c, download.DiskError(err, "read")
	}
	modules, err := weights.Modules(text)
	if err != nil {
		return c, explain(err)
	}
	return c.WithModules(files, modules)
}

// copyTo brings a file of the model's folder into dir, all but the numbers of
// weights, and puts it among those that are known. Empty ones say nothing and
// are left out.
func (h *hubLook) copyTo(dir, folder string, e hub.Entry, known map[string]model.File) error {
	if _, done := known[e.Path]; done || e.Bytes == 0 {
		return nil
	}
	below, err := filepath.Rel(filepath.FromSlash(folder), filepath.FromSlash(e.Path))
	if err != nil || !filepath.IsLocal(below) {
		return failure(v1alpha1.ReasonInvalidModel, "%s is not in the model's folder", e.Path)
	}
	name := filepath.Join(dir, below)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return download.DiskError(err, "make room for")
	}
	sum := e.SHA256
	if strings.HasSuffix(e.Path, ".safetensors") {
		err = h.header(e, name)
	} else {
		sum, err = h.small(e, name)
	}
	if err != nil {
		return err
	}
	known[e.Path] = model.File{Path: e.Path, Bytes: e.Bytes, SHA256: sum}
	return nil
}

// readFolder reads a folder as the engine does, all but the numbers.
func (r *Resolver) readFolder(ctx context.Context, dir string, fits check) (c contents, err error) {
	f, err := r.budget().Open(dir)
	if err != nil {
		return c, explain(err)
	}
	defer f.Close()
	if !f.Folder().Has("tokenizer.json") {
		return c, failure(v1alpha1.ReasonInvalidModel, "the model has no tokenizer.json, without which no engine reads text; choose another repository, or add the file")
	}
	if c.facts, err = f.Facts(); err != nil {
		return c, explain(err)
	}
	if err := fits(f); err != nil {
		return c, err
	}
	if !hub.Presentable(c.facts.Name) {
		c.facts.Name = ""
	}
	if c.facts.TaskOf() == model.Generate {
		c.features, err = r.folderFeatures(ctx, f.Folder())
	}
	return c, err
}

// header writes a file that is as long as one of weights and has its header
// alone: 8 bytes of length, then JSON (the format of safetensors).
func (h *hubLook) header(e hub.Entry, name string) error {
	if e.SHA256 == "" {
		return failure(v1alpha1.ReasonInvalidModel, "the hub does not provide the SHA-256 of %s, which is not in large file storage; choose another repository", e.Path)
	}
	f, err := h.open(e)
	if err != nil {
		return err
	}
	defer f.close()
	var length [8]byte
	if _, err := f.ReadAt(length[:], 0); err != nil {
		return readFault(err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > uint64(f.most-h.copied.headers) || int64(n) > f.size-8 { // of all together, as when they are parsed
		return failure(v1alpha1.ReasonInvalidModel, "%s has a header of %d bytes, which is not plausible; choose another repository", e.Path, n)
	}
	h.copied.headers += int64(n)
	return sparse(name, io.NewSectionReader(f, 0, 8+int64(n)), e.Bytes)
}

// sparse writes a file of a size that begins with head and takes no more disk.
func sparse(name string, head io.Reader, size int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return download.DiskError(err, "make room for")
	}
	defer f.Close()
	if _, err := io.Copy(f, head); err != nil {
		var disk *fs.PathError // of the disk; others are of the source
		if !errors.As(err, &disk) {
			return readFault(err)
		}
		return download.DiskError(err, "write")
	}
	if err := f.Truncate(size); err != nil {
		return download.DiskError(err, "make room for")
	}
	return f.Close()
}

// small fetches a file whole and returns its SHA-256. Either that or git's name
// of the file must be what the hub says.
func (h *hubLook) small(e hub.Entry, name string) (string, error) {
	if h.copied.whole += e.Bytes; e.Bytes > maxSmallFile || h.copied.whole > maxSmallFiles {
		return "", failure(v1alpha1.ReasonInvalidModel, "%s has %d bytes; files other than weights may have at most %d bytes each and %d in total", e.Path, e.Bytes, maxSmallFile, maxSmallFiles)
	}
	resp, err := h.get(e, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", download.DiskError(err, "make room for")
	}
	defer f.Close()
	sum, blob := sha256.New(), sha1.New()
	fmt.Fprintf(blob, "blob %d\x00", e.Bytes)
	n, err := io.Copy(io.MultiWriter(f, sum, blob), io.LimitReader(resp.Body, e.Bytes+1))
	got := hex.EncodeToString(sum.Sum(nil))
	switch {
	case err != nil:
		return "", readFault(err)
	case n != e.Bytes:
		return "", failure(v1alpha1.ReasonSourceUnreachable, "%s lists %s with %d bytes but serves another size; contact its administrators", h.who, e.Path, e.Bytes)
	case e.SHA256 == "" && e.Blob != "" && hex.EncodeToString(blob.Sum(nil)) != e.Blob:
		return "", failure(v1alpha1.ReasonDigestMismatch, "the content of %s does not match the hub's listing (its git object ID is %s); contact the hub's administrators", e.Path, e.Blob)
	case e.SHA256 != "" && got != e.SHA256:
		return "", failure(v1alpha1.ReasonDigestMismatch, "%s has SHA-256 %s, but %s lists %s; contact its administrators", e.Path, got, h.who, e.SHA256)
	}
	return got, f.Close()
}

// within bounds one look at a remote source.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return download.WithTime(ctx, remoteTime, &download.Error{
		Reason: v1alpha1.ReasonSourceUnreachable, Transient: true,
		Message: fmt.Sprintf("reading the header took longer than %v; retrying", remoteTime),
	})
}
