package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

// LocalFolder is an open folder of the model root with a model in safetensors.
// Neither its path nor its files contain a symbolic link, so an engine reads the
// files that were hashed.
type LocalFolder struct {
	// Name is the path of the folder relative to the root.
	Name string
	// Files are the non-empty files of the model, sorted by name.
	Files []hub.Entry

	root *os.Root
	dir  string
}

// Path is the folder's absolute path.
func (l *LocalFolder) Path() string { return filepath.Join(l.dir, filepath.FromSlash(l.Name)) }

// Close closes the folder.
func (l *LocalFolder) Close() error { return l.root.Close() }

// Record returns the model record of the folder's files with these digests, in
// the order of Files; it has no facts.
func (l *LocalFolder) Record(source string, sums []string) model.Record {
	rec := model.Record{Source: source, Format: model.FormatSafetensors}
	for i, f := range l.Files {
		rec.Files = append(rec.Files, model.File{Path: f.Path, Bytes: f.Bytes, SHA256: sums[i]})
	}
	rec.Digest = model.DigestOf(rec.Files)
	return rec
}

// OpenFolder opens the folder that a file:// source names, if it contains a model
// in safetensors; it returns nil without an error if the caller must try Open.
// The caller closes it.
func (r *Root) OpenFolder(source string) (*LocalFolder, error) {
	name, err := localName(source)
	if err != nil || r.root == nil {
		return nil, err // Open reports what is missing
	}
	info, err := r.root.Stat(name)
	if err != nil || !info.IsDir() {
		return nil, nil // Open reports the error, if there is one
	}
	l, err := r.openFolder(name)
	if err != nil {
		return nil, explain(err, brief(source))
	}
	return l, nil
}

// openFolder is OpenFolder for a path relative to the root.
func (r *Root) openFolder(name string) (*LocalFolder, error) {
	// Linked files are listed to find out which model is meant, but not used.
	entries, err := listing(r.root, name)
	if err != nil {
		return nil, err
	}
	ggufs := slices.ContainsFunc(entries, func(e hub.Entry) bool { return strings.HasSuffix(e.Path, ".gguf") })
	tensors := slices.ContainsFunc(entries, func(e hub.Entry) bool { return hub.IsWeights(e.Path) })
	switch {
	case !tensors:
		return nil, nil
	case ggufs:
		return nil, failure(v1alpha1.ReasonInvalidModel, "folder %s contains .gguf and .safetensors files; name the .gguf file to use, or give each model its own folder", brief(name))
	}
	root, err := descend(r.root, name)
	if err != nil {
		return nil, err
	}
	l := &LocalFolder{Name: name, root: root, dir: r.dir}
	if err := l.choose(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return l, nil
}

// OpenAdapter opens the folder of an adapter that a file:// source names. The caller
// closes it.
func (r *Root) OpenAdapter(source string) (*LocalFolder, error) {
	name, err := localName(source)
	if err != nil {
		return nil, err
	}
	if r.root == nil {
		return nil, failure(v1alpha1.ReasonSourceNotFound, "this Mac has no model root, so it cannot serve %s; start its agent with --model-root", source)
	}
	root, err := descend(r.root, name)
	if err != nil {
		return nil, explain(err, brief(source))
	}
	l := &LocalFolder{Name: name, root: root, dir: r.dir}
	if err := l.chooseAdapter(); err != nil {
		return nil, errors.Join(explain(err, brief(source)), root.Close())
	}
	return l, nil
}

// chooseAdapter picks the files of the adapter from the opened folder.
func (l *LocalFolder) chooseAdapter() error {
	entries, err := listing(l.root, ".")
	if err != nil {
		return err
	}
	c, err := hub.ChooseAdapter(entries)
	if err != nil {
		return err
	}
	for _, f := range c.Files {
		if err := l.take(f.Path); err != nil {
			return err
		}
	}
	return nil
}

// choose picks the files of the model from the opened folder.
func (l *LocalFolder) choose() error {
	entries, err := listing(l.root, ".")
	if err != nil {
		return err
	}
	templates, err := listing(l.root, hub.TemplatesFolder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	for _, t := range templates {
		entries = append(entries, hub.Entry{Path: path.Join(hub.TemplatesFolder, t.Path)})
	}
	c, err := hub.Choose(entries, nil)
	if err != nil {
		return err
	}
	for _, f := range c.Files {
		if err := l.take(f.Path); err != nil {
			return err
		}
	}
	modules, err := l.modules()
	if err != nil {
		return err
	}
	for _, m := range modules {
		if name := m.ConfigPath(); name != "" && !slices.ContainsFunc(l.Files, func(e hub.Entry) bool { return e.Path == name }) {
			if err := l.take(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	slices.SortFunc(l.Files, func(a, b hub.Entry) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// take adds a file to the model, unless it is empty.
func (l *LocalFolder) take(name string) error {
	dir, err := l.reach(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Lstat(path.Base(name))
	switch {
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return linked(path.Join(l.Name, name))
	case !info.Mode().IsRegular():
		return failure(v1alpha1.ReasonSourceForbidden, "%s is not a regular file", brief(path.Join(l.Name, name)))
	case info.Size() > 0:
		l.Files = append(l.Files, hub.Entry{Path: name, Bytes: info.Size()})
	}
	return nil
}

// reach opens the folder of one of the model's files without following links.
func (l *LocalFolder) reach(name string) (*os.Root, error) {
	at := path.Dir(name)
	if at == "." {
		return l.root.OpenRoot(".")
	}
	return step(l.root, at, path.Join(l.Name, at))
}

// modules returns the modules of the folder's modules.json, if it has one.
func (l *LocalFolder) modules() ([]weights.Module, error) {
	at := slices.IndexFunc(l.Files, func(e hub.Entry) bool { return e.Path == weights.ModulesFile })
	if at < 0 {
		return nil, nil
	}
	f, err := l.open(l.Files[at])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, weights.MaxModulesBytes+1))
	if err != nil {
		return nil, err
	}
	modules, err := weights.Modules(text)
	if err != nil {
		return nil, &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: fmt.Sprintf("cannot read folder %s as a model", brief(l.Name)), Err: err}
	}
	return modules, nil
}

// listing returns the entries of a folder that are not folders.
func listing(root *os.Root, name string) ([]hub.Entry, error) {
	d, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	all, err := d.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(all) > maxEntries {
		return nil, failure(v1alpha1.ReasonInvalidModel, "folder %s contains more than %d files; give the model its own folder", brief(name), maxEntries)
	}
	var out []hub.Entry
	for _, e := range all {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, hub.Entry{Path: e.Name()})
		}
	}
	return out, nil
}

// descend opens a folder under a root, one path element at a time and without
// following links, so that the opened folder is the one that was checked.
func descend(root *os.Root, name string) (*os.Root, error) {
	cur, err := root.OpenRoot(".")
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(name, "/") {
		next, err := step(cur, part, name)
		if err = errors.Join(err, cur.Close()); err != nil {
			return nil, err
		}
		cur = next
	}
	return cur, nil
}

func step(cur *os.Root, part, name string) (*os.Root, error) {
	seen, err := cur.Lstat(part)
	if err != nil {
		return nil, err
	}
	if seen.Mode()&fs.ModeSymlink != 0 {
		return nil, linked(name)
	}
	next, err := cur.OpenRoot(part)
	if err != nil {
		return nil, err
	}
	if got, err := next.Stat("."); err != nil || !os.SameFile(seen, got) {
		return nil, errors.Join(err, linked(name), next.Close())
	}
	return next, nil
}

func linked(name string) *download.Error {
	return failure(v1alpha1.ReasonSourceForbidden, "%s is a symbolic link, or is reached through one; the agent uses folders in place, so copy it into the model root, or use the path it links to", brief(name))
}

// open opens one of the folder's files and checks that it is the listed one.
func (l *LocalFolder) open(f hub.Entry) (*Local, error) {
	dir, err := l.reach(f.Path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	seen, err := dir.Lstat(path.Base(f.Path))
	if err != nil {
		return nil, err
	}
	// Without O_NONBLOCK a pipe in its place would block forever.
	file, err := dir.OpenFile(path.Base(f.Path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	got, err := file.Stat()
	if err == nil && (!seen.Mode().IsRegular() || !os.SameFile(seen, got)) {
		err = linked(path.Join(l.Name, f.Path))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Local{File: file, Name: path.Join(l.Name, f.Path), Size: got.Size(), stamp: stampOf(got), dir: l.dir}, nil
}

// SumFolder returns the SHA-256 of each of a folder's files; the digest of an
// unchanged file is cached. report receives the bytes of all files.
func (r *Root) SumFolder(ctx context.Context, l *LocalFolder, report func(done int64)) ([]string, error) {
	var sums []string
	before := int64(0)
	for _, f := range l.Files {
		sum, err := r.sumOf(ctx, l, f, func(done int64) {
			if report != nil {
				report(before + done)
			}
		})
		if err != nil {
			return nil, err
		}
		sums = append(sums, sum)
		before += f.Bytes
	}
	r.rememberFolder(l)
	return sums, nil
}

func (r *Root) sumOf(ctx context.Context, l *LocalFolder, f hub.Entry, report func(int64)) (string, error) {
	file, err := l.open(f)
	if err != nil {
		return "", explain(err, brief(path.Join(l.Name, f.Path)))
	}
	defer file.Close()
	if file.Size != f.Bytes {
		return "", &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: fmt.Sprintf("%s is being written; checking it again", brief(file.Name))}
	}
	return r.Sum(ctx, file, report)
}

// rememberFolder stores which files belong to a model.
func (r *Root) rememberFolder(l *LocalFolder) {
	var names []string
	for _, f := range l.Files {
		names = append(names, f.Path)
	}
	r.mu.Lock()
	same := slices.Equal(r.folders[l.Name], names)
	r.folders[l.Name], r.folderUsed[l.Name] = names, time.Now()
	r.mu.Unlock()
	if !same {
		r.save()
	}
}

// folderRecords returns the records of the root's folders whose files were hashed
// and are unchanged, by the folder's path; without facts.
func (r *Root) folderRecords(known map[string]hashed) map[string]model.Record {
	r.mu.Lock()
	names := make([]string, 0, len(r.folders))
	for n := range r.folders {
		names = append(names, n)
	}
	r.mu.Unlock()
	out := map[string]model.Record{}
	for _, name := range names {
		l, err := r.openFolder(name)
		if err != nil || l == nil {
			continue // it is not a model
		}
		if sums := l.knownSums(known); sums != nil {
			out[name] = l.Record("", sums)
		}
		_ = l.Close()
	}
	return out
}

// knownSums returns the digests of all files, or nil if one is unknown.
func (l *LocalFolder) knownSums(known map[string]hashed) []string {
	var sums []string
	for _, f := range l.Files {
		h, ok := known[path.Join(l.Name, f.Path)]
		if !ok {
			return nil
		}
		sums = append(sums, h.SHA256)
	}
	return sums
}
