// Package faultfs is a disk in memory that fails on demand.
//
// It owns the twin of disk.OS for tests: a disk with a size, faults at chosen
// operations (no space, a short write, a torn rename, no permission, slowness
// on the test's clock), rot, a crash at a chosen operation, and what a crash of
// the process or of the power leaves behind. It refuses to be lenient: what
// was not synced may be gone, cut or garbage after the power fails, and names
// change on the disk in order but as late as they may.
//
// Start reading at New, then Fault and PowerLoss.
package faultfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// ErrCrashed is what every operation answers after a crash.
var ErrCrashed = errors.New("the machine has crashed")

// Kind is a kind of operation.
type Kind string

// The operations.
const (
	Create   Kind = "create"
	Write    Kind = "write"
	Sync     Kind = "sync"
	Close    Kind = "close"
	Open     Kind = "open"
	Read     Kind = "read"
	Stat     Kind = "stat"
	ReadDir  Kind = "readdir"
	MkdirAll Kind = "mkdir"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	SetTime  Kind = "settime"
	SyncDir  Kind = "syncdir"
	Free     Kind = "free"
)

// Op is one operation. Index counts operations from 1; To is the target of a
// rename.
type Op struct {
	Kind     Kind
	Path, To string
	Index    int64
}

// Fault is what goes wrong with an operation; the zero Fault is nothing.
type Fault struct {
	// Err is the answer.
	Err error
	// Keep is how many bytes of a failing write reach the file.
	Keep int
	// Torn lets a failing rename leave half of the file at its new name.
	Torn bool
	// Delay is how long the operation takes, on the clock of time.Sleep.
	Delay time.Duration
}

// node is a file or a folder. What is synced is a prefix in time: data grows
// by appending, so that both may share memory.
type node struct {
	dir          bool
	data, synced []byte
	changed      time.Time
	// A file without a name takes its bytes of the disk until its writer closes.
	open, nameless bool
}

// change is one step of the names, as the disk's journal has it.
type change struct {
	path, to string // to: a rename
	node     *node  // set: the path now names it
}

// FS is the disk. It implements disk.FS.
type FS struct {
	mu       sync.Mutex
	names    map[string]*node
	durable  map[string]*node
	journal  []change
	capacity int64
	used     int64
	occupied int64
	ops      int64
	crashAt  int64
	crashed  bool
	fault    func(Op) Fault
}

// New returns an empty disk with room for this many bytes of files. It has one
// folder, "/".
func New(capacity int64) *FS {
	root := &node{dir: true}
	return &FS{capacity: capacity, names: map[string]*node{"/": root}, durable: map[string]*node{"/": root}}
}

// Inject decides what goes wrong from now on; nil is nothing.
func (f *FS) Inject(fault func(Op) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// CrashAt lets operation n of this disk and all after it fail; of a write, the
// first half still happens.
func (f *FS) CrashAt(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt = n
}

// Ops is how many operations there were.
func (f *FS) Ops() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// Used is how many bytes all files hold.
func (f *FS) Used() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used
}

// Occupy sets how many bytes of the disk other programs use.
func (f *FS) Occupy(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.occupied = bytes
}

// Rot flips one bit of a file, on the disk too.
func (f *FS) Rot(name string, bit int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.names[path.Clean(name)]
	if n == nil || n.dir || bit < 0 || bit/8 >= int64(len(n.data)) {
		return fmt.Errorf("%s has no bit %d", name, bit)
	}
	n.data = slices.Clone(n.data)
	n.data[bit/8] ^= 1 << (bit % 8)
	n.synced = n.data
	return nil
}

// Files lists the paths of all files in a folder and its subfolders.
func (f *FS) Files(below string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for p, n := range f.names {
		if !n.dir && within(p, path.Clean(below)) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// Length of a file; 0 where there is none. It is no operation.
func (f *FS) Length(name string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.names[path.Clean(name)]; n != nil {
		return int64(len(n.data))
	}
	return 0
}

// Restart is the disk after the process ended: nothing is lost.
func (f *FS) Restart() *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.again(f.names, func(n *node) []byte { return n.data })
}

// PowerLoss is the disk after the power failed: of the changes of names that
// no SyncDir has made durable, the first few happened; of a file that was not
// synced there is what was synced, a part, garbage or all of it.
func (f *FS) PowerLoss(r *rand.Rand) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := maps.Clone(f.durable)
	for _, c := range f.journal[:r.IntN(len(f.journal)+1)] {
		c.apply(names)
	}
	return f.again(names, func(n *node) []byte {
		if len(n.synced) == len(n.data) {
			return n.data
		}
		switch r.IntN(4) {
		case 0:
			return n.synced
		case 1:
			return n.data[:len(n.synced)+r.IntN(len(n.data)-len(n.synced))]
		case 2:
			garbled := slices.Clone(n.data)
			for i := len(n.synced) + r.IntN(len(n.data)-len(n.synced)); i < len(garbled); i++ {
				garbled[i] = byte(r.Uint32())
			}
			return garbled
		default:
			return n.data
		}
	})
}

// again is a working disk with these names.
func (f *FS) again(names map[string]*node, data func(*node) []byte) *FS {
	g := New(f.capacity)
	g.occupied = f.occupied
	for _, p := range slices.Sorted(maps.Keys(names)) {
		n := *names[p]
		if !n.dir {
			n.data = slices.Clone(data(names[p]))
			n.synced = n.data
			g.used += int64(len(n.data))
		}
		g.names[p] = &n
	}
	g.durable = maps.Clone(g.names)
	return g
}

func (c change) apply(names map[string]*node) {
	switch n := names[c.path]; {
	case c.to != "" && n != nil && !n.dir: // the common one, without a look at all names
		names[c.to] = n
		delete(names, c.path)
	case c.to != "":
		moved := map[string]*node{}
		for p, n := range names {
			if within(p, c.path) {
				moved[c.to+strings.TrimPrefix(p, c.path)] = n
				delete(names, p)
			}
		}
		maps.Copy(names, moved)
	case c.node != nil:
		names[c.path] = c.node
	default:
		delete(names, c.path)
	}
}

func within(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, strings.TrimSuffix(folder, "/")+"/")
}

// maxJournal bounds the changes that the disk keeps back.
const maxJournal = 1024

// do changes a name now, and on the disk some time.
func (f *FS) do(c change) {
	c.apply(f.names)
	f.journal = append(f.journal, c)
	if len(f.journal) > maxJournal {
		for _, c := range f.journal[:maxJournal/2] {
			c.apply(f.durable)
		}
		f.journal = slices.Clone(f.journal[maxJournal/2:])
	}
}

// begin counts an operation, lets it take its time, and takes the lock. The
// caller gives the lock back, also after an error.
func (f *FS) begin(kind Kind, name, to string) (Fault, error) {
	f.mu.Lock()
	if f.crashed {
		return Fault{}, ErrCrashed
	}
	f.ops++
	op := Op{Kind: kind, Path: name, To: to, Index: f.ops}
	if op.Index == f.crashAt {
		f.crashed = true
		return Fault{Err: ErrCrashed, Keep: -1}, ErrCrashed
	}
	if f.fault == nil {
		return Fault{}, nil
	}
	fault := f.fault
	f.mu.Unlock()
	now := fault(op)
	if now.Delay > 0 {
		time.Sleep(now.Delay)
	}
	f.mu.Lock()
	if f.crashed {
		return Fault{}, ErrCrashed
	}
	return now, now.Err
}

func wrong(kind Kind, name string, err error) error {
	if errors.Is(err, ErrCrashed) {
		return err
	}
	return &fs.PathError{Op: string(kind), Path: name, Err: err}
}

// Create implements disk.FS.
func (f *FS) Create(name string) (disk.Writer, error) {
	name = path.Clean(name)
	_, err := f.begin(Create, name, "")
	defer f.mu.Unlock()
	switch parent := f.names[path.Dir(name)]; {
	case err != nil:
		return nil, wrong(Create, name, err)
	case parent == nil || !parent.dir:
		return nil, wrong(Create, name, fs.ErrNotExist)
	case f.names[name] != nil && f.names[name].dir:
		return nil, wrong(Create, name, syscall.EISDIR)
	}
	f.drop(f.names[name])
	n := &node{changed: time.Now(), open: true}
	f.do(change{path: name, node: n})
	return &writer{f: f, name: name, n: n}, nil
}

type writer struct {
	f      *FS
	name   string
	n      *node
	closed bool
}

func (w *writer) Write(p []byte) (int, error) {
	fault, err := w.f.begin(Write, w.name, "")
	defer w.f.mu.Unlock()
	keep := len(p)
	if w.closed {
		return 0, fs.ErrClosed
	}
	if err != nil {
		keep = min(max(fault.Keep, 0), len(p))
		if fault.Keep < 0 {
			keep = len(p) / 2
		}
		err = wrong(Write, w.name, err)
	} else if free := w.f.free(); int64(keep) > free {
		keep, err = int(free), wrong(Write, w.name, syscall.ENOSPC)
	}
	w.n.data = append(w.n.data, p[:keep]...)
	w.n.changed = time.Now()
	w.f.used += int64(keep)
	return keep, err
}

func (w *writer) Sync() error {
	_, err := w.f.begin(Sync, w.name, "")
	defer w.f.mu.Unlock()
	if err != nil {
		return wrong(Sync, w.name, err)
	}
	w.n.synced = w.n.data
	return nil
}

func (w *writer) Close() error {
	_, err := w.f.begin(Close, w.name, "")
	defer w.f.mu.Unlock()
	if w.closed {
		return fs.ErrClosed
	}
	w.closed = true
	w.n.open = false
	if w.n.nameless {
		w.f.drop(w.n)
	}
	if err != nil {
		return wrong(Close, w.name, err)
	}
	return nil
}

// Open implements disk.FS.
func (f *FS) Open(name string) (disk.Reader, error) {
	name = path.Clean(name)
	_, err := f.begin(Open, name, "")
	defer f.mu.Unlock()
	n := f.names[name]
	if err == nil && n == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, wrong(Open, name, err)
	}
	return reader{f: f, name: name, n: n}, nil
}

type reader struct {
	f    *FS
	name string
	n    *node
}

func (r reader) ReadAt(p []byte, at int64) (int, error) {
	_, err := r.f.begin(Read, r.name, "")
	defer r.f.mu.Unlock()
	switch {
	case err != nil:
		return 0, wrong(Read, r.name, err)
	case r.n.dir:
		return 0, wrong(Read, r.name, syscall.EISDIR)
	case at >= int64(len(r.n.data)):
		return 0, io.EOF
	}
	n := copy(p, r.n.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (r reader) Stat() (disk.Info, error) {
	_, err := r.f.begin(Stat, r.name, "")
	defer r.f.mu.Unlock()
	if err != nil {
		return disk.Info{}, wrong(Stat, r.name, err)
	}
	return r.n.info(path.Base(r.name)), nil
}

func (r reader) Close() error { return nil }

func (n *node) info(name string) disk.Info {
	i := disk.Info{Name: name, Bytes: int64(len(n.data)), Changed: n.changed, Mode: 0o600}
	if n.dir {
		i.Mode = fs.ModeDir | 0o700
	}
	return i
}

// drop gives back what a file took that has lost its name, unless it is open.
func (f *FS) drop(n *node) {
	switch {
	case n == nil:
	case n.open:
		n.nameless = true
	default:
		f.used -= int64(len(n.data))
	}
}

func (f *FS) free() int64 { return max(0, f.capacity-f.used-f.occupied) }
