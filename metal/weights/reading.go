package weights

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

const (
	// emitters place rows at once.
	emitters = 2
	// piecesAhead is the number of pieces in memory: those being emitted, and
	// enough others to keep the disk busy meanwhile (bench engine, load).
	piecesAhead = emitters + 5
	// chunksAhead is the same for chunks.
	chunksAhead = emitters + 1
)

// Reading reads tensors one after the other, ahead of its caller: the next one
// is read while the rows of the current one are emitted, so that the disk never
// idles at the end of a tensor. It is returned by File.Read. It is not safe for
// concurrent use.
type Reading struct {
	f      *File
	ctx    context.Context
	stop   context.CancelCauseFunc
	queue  []queued
	next   int // of queue, to be taken
	pieces chan piece
	// roomPieces and roomChunks hold a token for each buffer that may be taken.
	roomPieces, roomChunks chan struct{}
	reader                 sync.WaitGroup
}

// queued is a tensor that is to be read; a fault is for who takes it.
type queued struct {
	e      Entry
	layout *layout
	fault  error
}

// Read begins to read tensors in this order. The caller takes each of them
// with Rows or Place, or stops early, and closes the reading in any case.
func (f *File) Read(ctx context.Context, entries []Entry) *Reading {
	r := &Reading{f: f, pieces: make(chan piece, piecesAhead), roomPieces: tokens(piecesAhead), roomChunks: tokens(chunksAhead)}
	r.ctx, r.stop = context.WithCancelCause(ctx)
	for _, e := range entries {
		l, err := f.layout(e)
		r.queue = append(r.queue, queued{e, l, err})
	}
	r.reader.Go(r.read)
	return r
}

func tokens(n int) chan struct{} {
	c := make(chan struct{}, n)
	for range n {
		c <- struct{}{}
	}
	return c
}

// Close ends the reading and waits until nothing of it runs.
func (r *Reading) Close() {
	r.stop(context.Canceled)
	r.reader.Wait()
}

// Rows is File.Rows for the next tensor.
func (r *Reading) Rows(e Entry, emit func(row int, rows quant.Row) error) error {
	return r.take(e, 1, false, emit)
}

// Place is File.Place for the next tensor.
func (r *Reading) Place(e Entry, emit func(first int, rows quant.Row) error) error {
	return r.take(e, emitters, true, emit)
}

// read reads all pieces, until a fault, which travels with the piece.
func (r *Reading) read() {
	defer close(r.pieces)
	for _, s := range r.queue {
		if s.fault != nil || !r.tensor(s.layout) {
			return
		}
	}
}

// tensor reads one tensor; false ends the reading.
func (r *Reading) tensor(l *layout) bool {
	var scales *chunk
	for first := 0; first < l.rows; first += l.each {
		var err error
		if first%l.chunk == 0 {
			if !r.wait(r.roomChunks) {
				return false
			}
			scales, err = l.readChunk(first, r.f.borrow(l.chunk*l.scalesRow))
		}
		if !r.wait(r.roomPieces) {
			return false
		}
		p := l.readPiece(first, r.f.borrow(l.each*l.words.row), scales)
		if err != nil {
			p.err = err
		}
		select {
		case <-r.ctx.Done():
			return false
		case r.pieces <- p:
		}
		if p.err != nil {
			return false
		}
	}
	return true
}

// wait waits for a token; not beyond the end of the reading.
func (r *Reading) wait(room <-chan struct{}) bool {
	select {
	case <-r.ctx.Done():
		return false
	case <-room:
		return true
	}
}

// take emits the rows of the next tensor from this many goroutines.
func (r *Reading) take(e Entry, goroutines int, together bool, emit func(int, quant.Row) error) error {
	if r.next == len(r.queue) || r.queue[r.next].e.Path != e.Path {
		return family.Invalidf("tensor %s is read out of order", e.Name)
	}
	s := r.queue[r.next]
	r.next++
	if s.fault != nil {
		return fmt.Errorf("tensor %s: %w", e.Name, s.fault)
	}
	d := drain{r: r, l: s.layout, run: 1, emit: emit}
	d.left.Store(int64(s.layout.pieces()))
	if together && e.heads == 0 {
		d.run = s.layout.each
	}
	var others sync.WaitGroup
	for range min(goroutines, s.layout.pieces()) - 1 {
		others.Go(d.drain)
	}
	d.drain()
	others.Wait()
	if err := context.Cause(r.ctx); err != nil {
		return fmt.Errorf("load tensor %s: %w", e.Name, err)
	}
	return nil
}

// drain is who emits the pieces of one tensor.
type drain struct {
	r    *Reading
	l    *layout
	run  int
	emit func(int, quant.Row) error
	// left counts the unclaimed pieces.
	left atomic.Int64
}

// drain emits pieces until there are no more. A fault stops the reading.
func (d *drain) drain() {
	split, err := d.l.splitter(d.run)
	if err != nil {
		d.r.stop(err)
	}
	for d.left.Add(-1) >= 0 && d.r.ctx.Err() == nil {
		p, ok := <-d.r.pieces
		if !ok {
			return // the reading was stopped
		}
		if err := d.l.emit(p, d.run, split, d.emit); err != nil {
			d.r.stop(err)
			return
		}
		d.r.give(p)
	}
}

// give returns the buffers of a piece that was emitted.
func (r *Reading) give(p piece) {
	r.f.give(p.bytes)
	r.roomPieces <- struct{}{}
	if p.scales.left.Add(-1) == 0 {
		r.f.give(p.scales.bytes)
		r.roomChunks <- struct{}{}
	}
}

// maxSpare is how many buffers are kept for the next reading: those of pieces
// and of chunks.
const maxSpare = piecesAhead + chunksAhead

// borrow gives a piece of n bytes.
func (f *File) borrow(n int) []byte {
	if n == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, b := range f.spare {
		if cap(b) >= n {
			f.spare = append(f.spare[:i], f.spare[i+1:]...)
			return b[:n]
		}
	}
	return make([]byte, n, max(n, pieceBytes))
}

// give takes a piece back.
func (f *File) give(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b != nil && len(f.spare) < maxSpare && cap(b) <= 2*pieceBytes {
		f.spare = append(f.spare, b)
	}
}
