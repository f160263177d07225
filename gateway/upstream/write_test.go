package upstream

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a connection whose writes the test sees and completes one by one.
type slow struct {
	net.Conn
	wrote  chan []byte
	let    chan error
	closed chan struct{}
	once   sync.Once
}

func newSlow() *slow {
	return &slow{wrote: make(chan []byte), let: make(chan error), closed: make(chan struct{})}
}

func (s *slow) Write(p []byte) (int, error) {
	select {
	case s.wrote <- bytes.Clone(p):
	case <-s.closed:
		return 0, net.ErrClosed
	}
	select {
	case err := <-s.let:
		return len(p), err
	case <-s.closed:
		return 0, net.ErrClosed
	}
}

func (s *slow) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func write(t *testing.T, g *combinedConn, text string) {
	t.Helper()
	if n, err := g.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("write %d bytes: %d, %v", len(text), n, err)
	}
}

func TestPendingWritesAreSentTogetherInOrder(t *testing.T) {
	s := newSlow()
	g := combineWrites(s)
	defer g.Close()
	write(t, g, "one ")
	if got := string(<-s.wrote); got != "one " {
		t.Errorf("first %q", got)
	}
	for _, text := range []string{"two ", "three ", "four"} { // the first is still being sent
		write(t, g, text)
	}
	s.let <- nil
	if got := string(<-s.wrote); got != "two three four" {
		t.Errorf("then %q", got)
	}
	s.let <- nil
	write(t, g, "five")
	if got := string(<-s.wrote); got != "five" {
		t.Errorf("last %q", got)
	}
}

func TestALargeWriteIsSentByItsWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		g := newCombined(s) // its goroutine never runs
		write(t, g, string(make([]byte, combineBytes-2)))
		write(t, g, "x") // still too little
		done := make(chan struct{})
		go func() { defer close(done); write(t, g, "yz") }()
		if got := <-s.wrote; len(got) != combineBytes+1 {
			t.Errorf("%d bytes were sent, want all %d", len(got), combineBytes+1)
		}
		write(t, g, string(make([]byte, combineBytes))) // waits for the one that is being sent, without blocking the writer
		s.let <- nil
		<-done
		go write(t, g, "more")
		if got := <-s.wrote; len(got) != combineBytes+4 {
			t.Errorf("then %d bytes were sent, want %d", len(got), combineBytes+4)
		}
		s.let <- nil
	})
}

func TestTheNextWriteReturnsTheErrorOfAFailedOne(t *testing.T) {
	s := newSlow()
	g := combineWrites(s)
	write(t, g, "lost")
	<-s.wrote
	broken := errors.New("broken")
	s.let <- broken
	<-g.ended
	if _, err := g.Write([]byte("more")); !errors.Is(err, broken) {
		t.Errorf("the next write returned %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestPendingWritesAreBounded: a Mac that reads nothing blocks its writers, and
// closing the connection releases them.
func TestPendingWritesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		g := combineWrites(s)
		write(t, g, "x")
		<-s.wrote // and it does not complete
		write(t, g, string(make([]byte, pendingBytes)))
		held := make(chan error, 1)
		go func() {
			_, err := g.Write([]byte("y"))
			held <- err
		}()
		synctest.Wait()
		select {
		case err := <-held:
			t.Errorf("there was room for more: %v", err)
		default:
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if err := <-held; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the blocked writer got %v", err)
		}
		if _, err := g.Write([]byte("z")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write after the end returned %v", err)
		}
	})
}

// A Mac that stops reading, and still answers pings, holds no writer for long.
func TestAttackAMacThatStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		g := combineWrites(s)
		defer g.Close()
		write(t, g, "x")
		<-s.wrote // and it does not complete
		write(t, g, string(make([]byte, pendingBytes)))
		held := make(chan error, 1)
		began := time.Now()
		go func() {
			_, err := g.Write([]byte("y"))
			held <- err
		}()
		select {
		case err := <-held:
			if took := time.Since(began); err == nil || took > sendTimeout {
				t.Errorf("the blocked writer got %v after %v", err, took)
			}
		case <-time.After(time.Hour):
			t.Fatal("the writer is blocked for ever")
		}
		select {
		case <-s.closed: // so that all its requests fail
		default:
			t.Error("the connection is open")
		}
	})
}
