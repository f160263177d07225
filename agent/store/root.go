package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	maxKnown   = 2048
	maxFolders = 64
	maxEntries = 10_000
)

// Root is the folder in which an administrator of this Mac keeps models. It is
// read-only, and neither a path nor a link reaches anything outside of it.
type Root struct {
	dir   string
	root  *os.Root // nil if this Mac has no model root
	notes string
	log   logr.Logger

	// mu guards what follows.
	mu    sync.Mutex
	known map[string]hashed
	// folders are those that contained a model, with the names of its files, and
	// folderUsed is when each was last used since the agent started.
	folders    map[string][]string
	folderUsed map[string]time.Time
}

// hashed is the digest of a file when it had that stamp.
type hashed struct {
	Stamp  stamp  `json:"stamp"`
	SHA256 string `json:"sha256"`
	// At is when it was last used, in Unix seconds.
	At int64 `json:"at"`
}

func (h hashed) digest() string {
	return model.DigestOf([]model.File{{Path: SingleFile, Bytes: h.Stamp.Bytes, SHA256: h.SHA256}})
}

type rootNotes struct {
	Version int               `json:"version"`
	Dir     string            `json:"dir"`
	Files   map[string]hashed `json:"files"`
	// Folders was added later; notes without it are valid.
	Folders map[string][]string `json:"folders,omitempty"`
}

// OpenRoot opens the model root dir, or none if dir is empty. Digests are cached
// in the file notes.
func OpenRoot(dir, notes string, log logr.Logger) (*Root, error) {
	r := &Root{notes: notes, log: log, known: map[string]hashed{}, folders: map[string][]string{}, folderUsed: map[string]time.Time{}}
	if dir == "" {
		return r, nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("model root %s: %w", dir, err)
	}
	if r.root, err = os.OpenRoot(abs); err != nil {
		return nil, fmt.Errorf("model root %s: %w", dir, err)
	}
	r.dir = abs
	r.recall()
	return r, nil
}

// Dir returns the absolute path of the folder; empty if this Mac has no model root.
func (r *Root) Dir() string { return r.dir }

// Close closes the root.
func (r *Root) Close() error {
	if r.root == nil {
		return nil
	}
	return r.root.Close()
}

// Local is an open file of the model root.
type Local struct {
	*os.File
	// Name is the path of the file relative to the root.
	Name string
	Size int64

	stamp stamp
	dir   string
}

// Path is the file's absolute path.
func (l *Local) Path() string { return filepath.Join(l.dir, filepath.FromSlash(l.Name)) }

// Open opens the file that a file:// source names: a regular file under the root,
// or the only .gguf file in a folder there. The caller closes it.
func (r *Root) Open(source string) (*Local, error) {
	name, err := localName(source)
	if err != nil {
		return nil, err
	}
	source = brief(source)
	if r.root == nil {
		return nil, failure(v1alpha1.ReasonSourceNotFound, "this Mac has no model root, so it cannot serve %s; start its agent with --model-root", source)
	}
	info, err := r.root.Stat(name)
	if err == nil && info.IsDir() {
		name, info, err = r.onlyModel(name, source)
	}
	if err != nil {
		return nil, explain(err, source)
	}
	if !info.Mode().IsRegular() {
		return nil, failure(v1alpha1.ReasonSourceForbidden, "%s is not a regular file; use a .gguf file, or a folder that contains a model", source)
	}
	// Without O_NONBLOCK a pipe in its place would block forever.
	f, err := r.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, explain(err, source)
	}
	info, err = f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = failure(v1alpha1.ReasonSourceForbidden, "%s is not a regular file", source)
	}
	if err != nil {
		f.Close()
		return nil, explain(err, source)
	}
	return &Local{File: f, Name: name, Size: info.Size(), stamp: stampOf(info), dir: r.dir}, nil
}

// localName turns a file:// source into a path relative to the model root. Two
// and three slashes mean the same: nothing outside the root can be named.
func localName(source string) (string, error) {
	rest, ok := strings.CutPrefix(source, "file://")
	source = brief(source)
	if !ok {
		return "", failure(v1alpha1.ReasonSourceForbidden, "source %q does not start with file://", source)
	}
	if strings.ContainsAny(rest, "?#") {
		return "", failure(v1alpha1.ReasonSourceForbidden, "source %q contains '?' or '#'; write %%3F or %%23", source)
	}
	name, err := url.PathUnescape(rest)
	if err != nil {
		return "", failure(v1alpha1.ReasonSourceForbidden, "source %q is not percent-encoded correctly; write %%25 for '%%'", source)
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "/"), "/")
	if !model.LocalPath(name) {
		return "", failure(v1alpha1.ReasonSourceForbidden, "source %q leaves the Mac's model root; write file:// and a path inside it, without '..'", source)
	}
	return name, nil
}

// onlyModel returns the one model file in a folder.
func (r *Root) onlyModel(dir, source string) (string, fs.FileInfo, error) {
	d, err := r.root.Open(dir)
	if err != nil {
		return "", nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxEntries)
	if err != nil && len(names) > 0 {
		return "", nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		return !strings.HasSuffix(n, ".gguf") || strings.HasPrefix(n, ".")
	})
	switch len(names) {
	case 0:
		return "", nil, failure(v1alpha1.ReasonSourceNotFound, "folder %s contains neither a .gguf file nor a config.json with model*.safetensors", source)
	case 1:
		name := dir + "/" + names[0]
		info, err := r.root.Stat(name)
		return name, info, err
	}
	return "", nil, failure(v1alpha1.ReasonInvalidModel, "folder %s contains %d .gguf files; name the one to serve", source, len(names))
}

// Sum returns the SHA-256 of a file; the digest of an unchanged file is cached.
func (r *Root) Sum(ctx context.Context, l *Local, report func(done int64)) (string, error) {
	now := time.Now()
	r.mu.Lock()
	h, ok := r.known[l.Name]
	if ok = ok && h.Stamp == l.stamp; ok {
		h.At = now.Unix() // written with the next digest
		r.known[l.Name] = h
	}
	r.mu.Unlock()
	if ok {
		return h.SHA256, nil
	}
	sum, err := sumFile(ctx, l.File, report)
	if err != nil {
		return "", fmt.Errorf("hash %s: %w", l.Name, err)
	}
	info, err := l.File.Stat()
	if err != nil {
		return "", fmt.Errorf("hash %s: %w", l.Name, err)
	}
	if stampOf(info) != l.stamp {
		return "", &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "the file is being written; checking it again"}
	}
	if l.stamp.settled(now) {
		r.remember(l.Name, hashed{Stamp: l.stamp, SHA256: sum, At: now.Unix()})
	}
	return sum, nil
}

// remember caches a digest, in memory and on disk.
func (r *Root) remember(name string, h hashed) {
	r.mu.Lock()
	r.known[name] = h
	for len(r.known) > maxKnown {
		delete(r.known, slices.MinFunc(slices.Sorted(maps.Keys(r.known)), func(a, b string) int {
			return int(r.known[a].At - r.known[b].At)
		}))
	}
	r.mu.Unlock()
	r.save()
}

// save writes the cache to disk.
func (r *Root) save() {
	r.mu.Lock()
	for len(r.folders) > maxFolders { // costs listing the folder again
		least := slices.MinFunc(slices.Sorted(maps.Keys(r.folders)), func(a, b string) int {
			return r.folderUsed[a].Compare(r.folderUsed[b])
		})
		delete(r.folders, least)
		delete(r.folderUsed, least)
	}
	content, err := json.Marshal(rootNotes{Version: 1, Dir: r.dir, Files: r.known, Folders: r.folders})
	r.mu.Unlock()
	if err == nil {
		err = r.writeNotes(content)
	}
	if err != nil { // costs hashing again after a restart
		r.log.Error(err, "Failed to store the digests of the model root", "path", r.notes)
	}
}

func (r *Root) writeNotes(content []byte) error {
	dir := filepath.Dir(r.notes)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return writeAtomic(root, filepath.Base(r.notes), content)
}

// recall reads the notes of an earlier run. Unreadable notes and those of another
// root are ignored.
func (r *Root) recall() {
	b, err := os.ReadFile(r.notes)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var n rootNotes
	if err == nil {
		err = json.Unmarshal(b, &n)
	}
	if err != nil {
		r.log.Info("Ignoring the stored digests of the model root", "path", r.notes, "cause", err.Error())
		return
	}
	if n.Version == 1 && n.Dir == r.dir && n.Files != nil {
		r.known = n.Files
		if n.Folders != nil {
			r.folders = n.Folders
		}
	}
}

// held lists the models of the root that were hashed and are unchanged.
func (r *Root) held() []v1alpha1.StoredWeights {
	var out []v1alpha1.StoredWeights
	known := r.unchanged()
	folders := r.folderRecords(known)
	parts := map[string]bool{}
	for dir, rec := range folders {
		for _, f := range rec.Files {
			parts[path.Join(dir, f.Path)] = true
		}
	}
	for name, h := range known {
		if _, in := folders[path.Dir(name)]; !in && !parts[name] {
			out = append(out, v1alpha1.StoredWeights{Digest: h.digest(), Bytes: h.Stamp.Bytes})
		}
	}
	for _, rec := range folders {
		out = append(out, v1alpha1.StoredWeights{Digest: rec.Digest, Bytes: rec.Bytes()})
	}
	return out
}

func (r *Root) unchanged() map[string]hashed {
	r.mu.Lock()
	known := maps.Clone(r.known)
	r.mu.Unlock()
	maps.DeleteFunc(known, func(name string, h hashed) bool {
		info, err := r.root.Stat(name)
		return err != nil || stampOf(info) != h.Stamp
	})
	return known
}

// brief shortens a source for a sentence, so that the advice after it is read.
func brief(source string) string {
	if len(source) > 200 {
		return source[:197] + "..."
	}
	return source
}

func failure(reason, format string, args ...any) *download.Error {
	return &download.Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// explain turns a file system error into one with a reason. An error that is
// neither "not found" nor of the system is os.Root's refusal of a link that leads
// outside.
func explain(err error, source string) error {
	var typed *download.Error
	var sys syscall.Errno
	switch {
	case errors.As(err, &typed):
		return typed
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return failure(v1alpha1.ReasonSourceNotFound, "%s is not in this Mac's model root; check the path, or copy the file there", source)
	case errors.Is(err, fs.ErrPermission):
		return failure(v1alpha1.ReasonSourceForbidden, "this Mac's agent may not read %s; change its permissions", source)
	case errors.Is(err, syscall.ELOOP) || !errors.As(err, &sys):
		return failure(v1alpha1.ReasonSourceForbidden, "%s leads out of the Mac's model root through a symbolic link; copy the file, or make the link relative and keep it inside", source)
	}
	return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: fmt.Sprintf("this Mac cannot read %s; retrying", source), Err: sys}
}
