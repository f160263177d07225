// Package integrity notices that a program was changed since it was last known
// to be right.
//
// An agent starts the same engine program again and again, for as long as the
// Mac runs, and replaces itself with builds that it unpacked long before. What
// it starts is compared each time with what it was: a file that something else
// has written to since is not run.
//
// Start reading at Of.
package integrity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files are the SHA-256 digests, in hexadecimal, of a program's files by their
// path in its folder.
type Files map[string]string

// Of reads the programs with these names in a folder, and the libraries that
// lie with them (libraries).
func Of(dir string, programs ...string) (Files, error) {
	names, err := libraries(dir)
	if err != nil {
		return nil, err
	}
	f := Files{}
	for _, name := range append(names, programs...) {
		if f[name], err = digest(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// libraries are files that the dynamic loader or Metal loads into a program:
// shared libraries and compiled kernels, in the program's folder or in lib.
func libraries(dir string) (names []string, err error) {
	for _, sub := range []string{".", "lib"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if os.IsNotExist(err) && sub != "." {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list libraries: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() && loadable(e) {
				names = append(names, filepath.Join(sub, e.Name()))
			}
		}
	}
	return names, nil
}

func loadable(e fs.DirEntry) bool {
	ext := filepath.Ext(e.Name())
	return ext == ".dylib" || ext == ".metallib" || ext == ".so" || strings.Contains(e.Name(), ".so.")
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read program: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read program %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ChangedError means that a file of a program is not what it was.
type ChangedError struct{ what string }

func (e *ChangedError) Error() string { return e.what }

// Check compares the files in a folder with f. It returns the first that was
// changed or removed; a library that was added is a change too.
func (f Files) Check(dir string) error {
	added, err := libraries(dir)
	if err != nil {
		return err
	}
	for _, name := range added {
		if _, ok := f[name]; !ok {
			return &ChangedError{fmt.Sprintf("%s was added", filepath.Join(dir, name))}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		now, err := digest(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if now != f[name] {
			return &ChangedError{fmt.Sprintf("%s was changed: its SHA-256 is %s, want %s", filepath.Join(dir, name), now, f[name])}
		}
	}
	return nil
}
