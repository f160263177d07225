package cold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cespare/xxhash/v2"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// Size implements kv.Tier: it reads the header of the block's file, unless the
// block is still queued.
func (t *Tier) Size(key kv.Key) (int64, bool) {
	if p, ok := t.queued(key); ok {
		return int64(len(p)), true
	}
	r, h, err := t.open(key)
	if err != nil {
		return 0, false
	}
	_ = r.Close() // nothing was written
	return h.PayloadBytes, true
}

// Read implements kv.Tier. It forgets a damaged block and reports it to the
// owner; the block is absent until it is written again.
func (t *Tier) Read(ctx context.Context, key kv.Key, dst []byte) error {
	if p, ok := t.queued(key); ok {
		if len(p) != len(dst) {
			return fmt.Errorf("block of %d bytes into %d", len(p), len(dst))
		}
		copy(dst, p)
		t.count(func(c *Counters) { c.Read++; c.Pending++ })
		return nil
	}
	r, h, err := t.open(key)
	if err != nil {
		t.count(func(c *Counters) { c.Missed++ })
		return err
	}
	defer r.Close()
	if h.PayloadBytes != int64(len(dst)) {
		return fmt.Errorf("block of %d bytes into %d", h.PayloadBytes, len(dst))
	}
	if err := readPayload(ctx, r, h, dst); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return t.damaged(key, r, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Read++
	t.touch(key)
	return nil
}

// queued returns the bytes of a block that waits to be written. They never
// change.
func (t *Tier) queued(key kv.Key) ([]byte, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	it := t.pending[key]
	if it == nil {
		return nil, false
	}
	return it.payload, true
}

func (t *Tier) count(change func(*Counters)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.counts)
}

// open opens the file of a block and checks its header. It reports files that
// are present but unusable.
func (t *Tier) open(key kv.Key) (disk.Reader, Header, error) {
	t.mu.Lock()
	dir, bad := t.lease.Dir, t.bad[key]
	distrusted := t.written.again[key]
	t.mu.Unlock()
	if dir == "" || distrusted {
		return nil, Header{}, kv.ErrAbsent
	}
	r, err := t.opt.FS.Open(Path(dir, t.ns, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Header{}, kv.ErrAbsent
	} else if err != nil { // an error of the disk: the block stays, unused
		t.opt.Log.Warn("Cannot open a cached block", "error", err)
		return nil, Header{}, fmt.Errorf("%w: %w", kv.ErrAbsent, err)
	}
	info, err := r.Stat()
	if err == nil && !bad.IsZero() && info.Changed.Equal(bad) {
		return nil, Header{}, errors.Join(kv.ErrAbsent, r.Close())
	}
	var h Header
	if err == nil {
		h, err = CheckFile(r, info, t.ns, key)
	}
	if err != nil {
		err = t.damaged(key, r, err)
		return nil, Header{}, errors.Join(err, r.Close())
	}
	return r, h, nil
}

// CheckFile reads the header of a block's file and compares it with the
// expected values. It does not read the payload.
func CheckFile(r io.ReaderAt, info disk.Info, n Namespace, key kv.Key) (Header, error) {
	if !info.Mode.IsRegular() {
		return Header{}, fmt.Errorf("not a regular file: %w", ErrForeign)
	}
	var b [HeaderBytes]byte
	if _, err := r.ReadAt(b[:], 0); errors.Is(err, io.EOF) && info.Bytes < HeaderBytes {
		return Header{}, ErrForeign
	} else if err != nil && !errors.Is(err, io.EOF) {
		return Header{}, err
	}
	h, err := ParseHeader(b[:])
	switch {
	case err != nil:
		return Header{}, err
	case h.Key != key || h.Namespace != n:
		return Header{}, fmt.Errorf("the file has the header of another block: %w", kv.ErrCorrupt)
	case info.Bytes != FileBytes(h.PayloadBytes):
		return Header{}, fmt.Errorf("%d bytes, want %d: %w", info.Bytes, FileBytes(h.PayloadBytes), kv.ErrCorrupt)
	}
	return h, nil
}

// readPayload fills dst and compares its checksum with the header's.
func readPayload(ctx context.Context, r io.ReaderAt, h Header, dst []byte) error {
	sum := xxhash.New()
	for at := 0; at < len(dst); at += pieceBytes {
		if err := ctx.Err(); err != nil {
			return err
		}
		piece := dst[at:min(at+pieceBytes, len(dst))]
		if n, err := r.ReadAt(piece, HeaderBytes+int64(at)); n < len(piece) {
			return fmt.Errorf("read %d of %d bytes: %w", n, len(piece), err)
		}
		_, _ = sum.Write(piece) // never fails
	}
	if sum.Sum64() != h.Sum {
		return errors.New("checksum mismatch")
	}
	return nil
}

// damaged forgets a block, reports it to the owner, and returns kv.ErrCorrupt.
// r is its file.
func (t *Tier) damaged(key kv.Key, r disk.Reader, why error) error {
	info, err := r.Stat()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Damaged++
	if err == nil {
		t.bad[key] = info.Changed
	}
	t.report.Damaged = append(t.report.Damaged, key)
	t.tell()
	t.opt.Log.Error("Dropping a damaged cached block", "error", why)
	return fmt.Errorf("%w: %w", kv.ErrCorrupt, why)
}
