// Package folder reads a model's folder: plain files with bounded sizes, and
// never a file outside of it.
//
// It owns where a model's files may lie (directly in its folder, or in a
// folder of it that its reader names) and how big those that are read whole may be. It refuses links that lead out of the
// folder, files that are not regular, and text that is larger than its reader
// expects. It knows no format.
//
// Start reading at Open.
package folder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

// Sentinels that callers branch on.
var (
	// ErrMissing means that the folder does not have the file.
	ErrMissing = errors.New("file is missing")
	// ErrTooLarge means that a file exceeds the limit of its reader.
	ErrTooLarge = errors.New("file is too large")
	// ErrOutside means that a name or link leads out of the folder.
	ErrOutside = errors.New("leads out of the model's folder; copy the file into the folder")
	// ErrInvalid means that a file does not have the expected format.
	ErrInvalid = errors.New("cannot read the file")
)

// maxNames bounds a listing.
const maxNames = 10_000

// Folder is an open model folder. Its methods may be used at once.
type Folder struct {
	root *os.Root
	path string
}

// Open opens the folder at path.
func Open(path string) (*Folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open model folder: %w", err)
	}
	return &Folder{root: root, path: path}, nil
}

// Path is the argument of Open.
func (f *Folder) Path() string { return f.path }

// Close closes the folder; files that were opened from it stay open.
func (f *Folder) Close() error { return f.root.Close() }

// Sub opens a direct subfolder, under the same rules.
func (f *Folder) Sub(name string) (*Folder, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return nil, fmt.Errorf("folder %q: %w", name, ErrOutside)
	}
	root, err := f.root.OpenRoot(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", name, ErrMissing)
	case err != nil && f.isLink(name):
		return nil, fmt.Errorf("%s is a symbolic link that %w", name, ErrOutside)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", name, ErrInvalid, err)
	}
	return &Folder{root: root, path: filepath.Join(f.path, name)}, nil
}

// File opens a regular file directly in the folder.
func (f *Folder) File(name string) (*os.File, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return nil, fmt.Errorf("file %q: %w", name, ErrOutside)
	}
	info, err := f.root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", name, ErrMissing)
	case err != nil && f.isLink(name):
		return nil, fmt.Errorf("%s is a symbolic link that %w", name, ErrOutside)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", name, ErrInvalid, err)
	case !info.Mode().IsRegular(): // a pipe would block for ever
		return nil, fmt.Errorf("%s is not a regular file: %w", name, ErrInvalid)
	}
	file, err := f.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, ErrInvalid, err)
	}
	return file, nil
}

func (f *Folder) isLink(name string) bool {
	info, err := f.root.Lstat(name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// Has reports whether there is a file of this name, even one that File would
// refuse.
func (f *Folder) Has(name string) bool {
	_, err := f.root.Lstat(name)
	return err == nil
}

// Read reads a whole file of at most limit bytes.
func (f *Folder) Read(name string, limit int64) ([]byte, error) {
	file, err := f.File(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, ErrInvalid, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has over %d bytes: %w", name, limit, ErrTooLarge)
	}
	return data, nil
}

// JSON reads a JSON file of at most limit bytes into v.
func (f *Folder) JSON(name string, limit int64, v any) error {
	data, err := f.Read(name, limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w: %w", name, ErrInvalid, excerpt.Error(err)) // it may repeat a number of the file
	}
	return nil
}

// Names lists the files whose names end in suffix, sorted.
func (f *Folder) Names(suffix string) ([]string, error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("list model folder: %w", err)
	}
	defer dir.Close()
	all, err := dir.Readdirnames(maxNames + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list model folder: %w", err)
	}
	if len(all) > maxNames {
		return nil, fmt.Errorf("model folder contains over %d files: %w", maxNames, ErrTooLarge)
	}
	var out []string
	for _, n := range all {
		if strings.HasSuffix(n, suffix) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}
