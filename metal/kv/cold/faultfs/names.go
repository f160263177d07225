package faultfs

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// Stat implements disk.FS.
func (f *FS) Stat(name string) (disk.Info, error) {
	name = path.Clean(name)
	_, err := f.begin(Stat, name, "")
	defer f.mu.Unlock()
	n := f.names[name]
	if err == nil && n == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return disk.Info{}, wrong(Stat, name, err)
	}
	return n.info(path.Base(name)), nil
}

// ReadDir implements disk.FS.
func (f *FS) ReadDir(name string) ([]disk.Info, error) {
	name = path.Clean(name)
	_, err := f.begin(ReadDir, name, "")
	defer f.mu.Unlock()
	n := f.names[name]
	switch {
	case err != nil:
	case n == nil:
		err = fs.ErrNotExist
	case !n.dir:
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, wrong(ReadDir, name, err)
	}
	var infos []disk.Info
	for p, n := range f.names {
		if p != "/" && path.Dir(p) == name {
			infos = append(infos, n.info(path.Base(p)))
		}
	}
	slices.SortFunc(infos, func(a, b disk.Info) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// MkdirAll implements disk.FS.
func (f *FS) MkdirAll(name string) error {
	name = path.Clean(name)
	_, err := f.begin(MkdirAll, name, "")
	defer f.mu.Unlock()
	if err != nil {
		return wrong(MkdirAll, name, err)
	}
	var missing []string
	for p := name; f.names[p] == nil; p = path.Dir(p) {
		missing = append(missing, p)
	}
	for _, p := range slices.Backward(missing) {
		if !f.names[path.Dir(p)].dir {
			return wrong(MkdirAll, name, syscall.ENOTDIR)
		}
		f.do(change{path: p, node: &node{dir: true, changed: time.Now()}})
	}
	return nil
}

// Rename implements disk.FS.
func (f *FS) Rename(from, to string) error {
	from, to = path.Clean(from), path.Clean(to)
	fault, err := f.begin(Rename, from, to)
	defer f.mu.Unlock()
	n, old := f.names[from], f.names[to]
	parent := f.names[path.Dir(to)]
	switch {
	case err != nil && fault.Torn && n != nil && !n.dir && parent != nil:
		half := &node{data: slices.Clone(n.data[:len(n.data)/2]), changed: n.changed}
		half.synced = half.data
		f.used += int64(len(half.data))
		f.drop(old)
		f.do(change{path: to, node: half})
	case err != nil:
	case n == nil || parent == nil || !parent.dir:
		err = fs.ErrNotExist
	case old != nil && (old.dir || n.dir):
		err = syscall.EEXIST
	default:
		f.drop(old)
		f.do(change{path: from, to: to})
	}
	if err != nil {
		return wrong(Rename, from, err)
	}
	return nil
}

// Remove implements disk.FS.
func (f *FS) Remove(name string) error {
	name = path.Clean(name)
	_, err := f.begin(Remove, name, "")
	defer f.mu.Unlock()
	n := f.names[name]
	switch {
	case err != nil:
	case n == nil:
		err = fs.ErrNotExist
	case n.dir && f.holdsAny(name):
		err = syscall.ENOTEMPTY
	default:
		f.drop(n)
		f.do(change{path: name})
	}
	if err != nil {
		return wrong(Remove, name, err)
	}
	return nil
}

func (f *FS) holdsAny(folder string) bool {
	for p := range f.names {
		if p != folder && within(p, folder) {
			return true
		}
	}
	return false
}

// SetTime implements disk.FS.
func (f *FS) SetTime(name string, at time.Time) error {
	name = path.Clean(name)
	_, err := f.begin(SetTime, name, "")
	defer f.mu.Unlock()
	n := f.names[name]
	if err == nil && n == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return wrong(SetTime, name, err)
	}
	n.changed = at
	return nil
}

// SyncDir implements disk.FS. The journal is in order: all before it is durable
// too.
func (f *FS) SyncDir(name string) error {
	_, err := f.begin(SyncDir, path.Clean(name), "")
	defer f.mu.Unlock()
	if err != nil {
		return wrong(SyncDir, name, err)
	}
	f.journal = nil
	f.durable = maps.Clone(f.names)
	return nil
}

// Free implements disk.FS.
func (f *FS) Free(name string) (int64, error) {
	_, err := f.begin(Free, path.Clean(name), "")
	defer f.mu.Unlock()
	if err != nil {
		return 0, wrong(Free, name, err)
	}
	return f.free(), nil
}
