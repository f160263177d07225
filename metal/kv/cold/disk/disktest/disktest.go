// Package disktest is the conformance suite of disk.FS.
//
// It owns what a file system and its twin in memory must agree on; it refuses
// nothing else. Start reading at Run.
package disktest

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// Run runs the suite. root is an existing empty folder of the file system.
func Run(t *testing.T, open func(t *testing.T) (f disk.FS, root string)) {
	for name, test := range map[string]func(*testing.T, disk.FS, string){
		"written data can be read":                  written,
		"a rename replaces a file":                  replaces,
		"a folder moves with its contents":          moves,
		"a missing file is reported as missing":     missing,
		"a folder is listed by name":                listed,
		"a folder that is not empty is not removed": stays,
		"the time of a file can be set":             timed,
		"a file can be read after it was removed":   removed,
		"a writer continues in a folder that moved": orphaned,
	} {
		t.Run(name, func(t *testing.T) {
			f, root := open(t)
			test(t, f, root)
		})
	}
}

func write(t *testing.T, f disk.FS, name, text string) {
	t.Helper()
	w, err := f.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := w.Write([]byte(text))
	if err := errors.Join(err, w.Sync(), w.Close()); err != nil || n != len(text) {
		t.Fatalf("%d bytes of %q were written: %v", n, text, err)
	}
}

func read(t *testing.T, f disk.FS, name string) string {
	t.Helper()
	r, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	i, err := r.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, i.Bytes)
	if n, err := r.ReadAt(b, 0); n != len(b) || err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("%d of %d bytes were read: %v", n, len(b), err)
	}
	return string(b)
}

func written(t *testing.T, f disk.FS, root string) {
	write(t, f, path.Join(root, "a"), "hello")
	write(t, f, path.Join(root, "a"), "again")
	if got := read(t, f, path.Join(root, "a")); got != "again" {
		t.Errorf("read %q", got)
	}
	r, err := f.Open(path.Join(root, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := make([]byte, 4)
	if n, err := r.ReadAt(b, 3); n != 2 || !errors.Is(err, io.EOF) || string(b[:n]) != "in" {
		t.Errorf("past the end: %d bytes %q, %v", n, b[:n], err)
	}
	if free, err := f.Free(root); err != nil || free <= 0 {
		t.Errorf("%d bytes free: %v", free, err)
	}
	if err := f.SyncDir(root); err != nil {
		t.Error(err)
	}
}

func replaces(t *testing.T, f disk.FS, root string) {
	write(t, f, path.Join(root, "a"), "new")
	write(t, f, path.Join(root, "b"), "old")
	if err := f.Rename(path.Join(root, "a"), path.Join(root, "b")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, f, path.Join(root, "b")); got != "new" {
		t.Errorf("read %q", got)
	}
	if _, err := f.Stat(path.Join(root, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name: %v", err)
	}
}

func moves(t *testing.T, f disk.FS, root string) {
	if err := f.MkdirAll(path.Join(root, "x/y")); err != nil {
		t.Fatal(err)
	}
	write(t, f, path.Join(root, "x/y/a"), "hello")
	if err := f.Rename(path.Join(root, "x"), path.Join(root, "z")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, f, path.Join(root, "z/y/a")); got != "hello" {
		t.Errorf("read %q", got)
	}
	if _, err := f.Create(path.Join(root, "x/y/b")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file in the folder's old place: %v", err)
	}
}

func missing(t *testing.T, f disk.FS, root string) {
	at := path.Join(root, "none")
	_, opened := f.Open(at)
	_, found := f.Stat(at)
	_, list := f.ReadDir(at)
	_, created := f.Create(path.Join(at, "a"))
	for what, err := range map[string]error{
		"open": opened, "stat": found, "list": list, "create without a parent folder": created,
		"remove": f.Remove(at), "rename": f.Rename(at, path.Join(root, "b")), "time": f.SetTime(at, time.Unix(1, 0)),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	write(t, f, path.Join(root, "a"), "x")
	if err := f.Rename(path.Join(root, "a"), path.Join(at, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rename into a missing folder: %v", err)
	}
}

func listed(t *testing.T, f disk.FS, root string) {
	write(t, f, path.Join(root, "b"), "four")
	write(t, f, path.Join(root, "a"), "")
	if err := f.MkdirAll(path.Join(root, "c/d")); err != nil {
		t.Fatal(err)
	}
	infos, err := f.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Fatalf("listed %q", names)
	}
	if infos[1].Bytes != 4 || !infos[1].Mode.IsRegular() || !infos[2].Mode.IsDir() {
		t.Errorf("listed %+v", infos)
	}
}

func stays(t *testing.T, f disk.FS, root string) {
	if err := f.MkdirAll(path.Join(root, "x")); err != nil {
		t.Fatal(err)
	}
	write(t, f, path.Join(root, "x/a"), "hello")
	if err := f.Remove(path.Join(root, "x")); err == nil {
		t.Error("a folder was removed with its contents")
	}
	if err := errors.Join(f.Remove(path.Join(root, "x/a")), f.Remove(path.Join(root, "x"))); err != nil {
		t.Error(err)
	}
}

func timed(t *testing.T, f disk.FS, root string) {
	at := time.Unix(1_700_000_000, 0)
	write(t, f, path.Join(root, "a"), "hello")
	if err := f.SetTime(path.Join(root, "a"), at); err != nil {
		t.Fatal(err)
	}
	if i, err := f.Stat(path.Join(root, "a")); err != nil || !i.Changed.Equal(at) {
		t.Errorf("changed %v: %v", i.Changed, err)
	}
}

func removed(t *testing.T, f disk.FS, root string) {
	write(t, f, path.Join(root, "a"), "hello")
	r, err := f.Open(path.Join(root, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := f.Remove(path.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := r.ReadAt(b, 0); string(b) != "hello" {
		t.Errorf("read %q: %v", b, err)
	}
}

// orphaned is what cleaning up relies on: a writer whose folder was moved away
// can finish, but it can no longer give its file a name by the old path.
func orphaned(t *testing.T, f disk.FS, root string) {
	if err := f.MkdirAll(path.Join(root, "tmp")); err != nil {
		t.Fatal(err)
	}
	w, err := f.Create(path.Join(root, "tmp/a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Rename(path.Join(root, "tmp"), path.Join(root, "gone")); err != nil {
		t.Fatal(err)
	}
	_, err = w.Write([]byte("hello"))
	if err := errors.Join(err, w.Close()); err != nil {
		t.Errorf("the writer: %v", err)
	}
	if err := f.Rename(path.Join(root, "tmp/a"), path.Join(root, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rename by the old path: %v", err)
	}
}
