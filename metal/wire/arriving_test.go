package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// begun is how much of a longer message hoards sends, in frames of 16 KiB.
const begun = 240 << 10

// hoard is an engine that begins a message in each call and ends none. It counts what is read of them.
func hoard(engine net.Conn, read *atomic.Int64) {
	_, _ = io.ReadFull(engine, make([]byte, len(http2.ClientPreface)))
	f := http2.NewFramer(engine, engine)
	calls := make(chan uint32, 1000)
	go func() {
		defer close(calls)
		for {
			got, err := f.ReadFrame()
			if err != nil {
				return
			}
			if h, ok := got.(*http2.HeadersFrame); ok {
				calls <- h.StreamID
			}
		}
	}()
	_ = f.WriteSettings()
	var h bytes.Buffer
	e := hpack.NewEncoder(&h)
	for call := range calls {
		h.Reset()
		_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		_ = e.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: call, BlockFragment: h.Bytes(), EndHeaders: true})
		_ = f.WriteData(call, false, message(begun+1))
		for n := 0; n < begun; n += 16 << 10 {
			if f.WriteData(call, false, make([]byte, 16<<10)) != nil {
				break
			}
			read.Add(16 << 10)
		}
	}
}

// TestMessagesThatAnEngineDoesNotEndEndItsConnection: one in each call would fill the agent's memory.
func TestMessagesThatAnEngineDoesNotEndEndItsConnection(t *testing.T) {
	const most = maxArriving/begun + 1
	var read, dials atomic.Int64
	all := NewArriving()
	conn, err := all.connect(func(context.Context) (net.Conn, error) {
		c, engine := net.Pipe()
		if dials.Add(1) == 1 {
			go hoard(engine, &read)
		}
		return c, nil
	}, briefBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, most)
	var calls sync.WaitGroup
	for range most {
		calls.Go(func() {
			s, err := NewEngineClient(conn).Watch(ctx, &WatchRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			ended <- err
		})
	}
	if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errArriving.Error()) {
		t.Errorf("a call ends with %v", err)
	}
	if n := read.Load(); n > maxArriving+64<<10 {
		t.Errorf("the agent reads %d bytes of messages that do not end, want at most %d", n, maxArriving)
	}
	cancel()
	calls.Wait()
}

// link is a connection to an engine, without gRPC.
type link struct {
	agent  impatient
	calls  uint32
	engine *http2.Framer
}

func newLink(all *Arriving) *link {
	c, engine := net.Pipe()
	all.add(c)
	l := &link{agent: impatient{c, new(answers), all}, engine: http2.NewFramer(engine, nil)}
	l.agent.send([]byte(http2.ClientPreface))
	return l
}

// call begins a call.
func (l *link) call() (stream uint32) {
	l.calls += 2
	stream = l.calls - 1
	var b bytes.Buffer
	_ = http2.NewFramer(&b, nil).WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true})
	l.agent.send(b.Bytes())
	return stream
}

// arrives reads n bytes that a message of the engine begins with, of a length.
func (l *link) arrives(stream uint32, length, n int) (err error) {
	var sent sync.WaitGroup
	defer sent.Wait()
	sent.Go(func() {
		_ = l.engine.WriteData(stream, false, message(length))
		for ; n > 0; n -= 16 << 10 {
			if l.engine.WriteData(stream, false, make([]byte, min(n, 16<<10))) != nil {
				return
			}
		}
		_ = l.engine.WritePing(false, [8]byte{1})
	})
	for b := make([]byte, 32<<10); err == nil; {
		var got int
		if got, err = l.agent.Read(b); got == frameHeader+8 && b[3] == byte(http2.FramePing) || got == 8 && b[0] == 1 {
			return err
		}
	}
	return err
}

// TestEnginesShareWhatArrives: where all have too much together, the connection of the one with the most
// ends, and the others receive long messages.
func TestEnginesShareWhatArrives(t *testing.T) {
	all := NewArriving()
	const part = 1 << 20
	keep := func(l *link, parts int) {
		t.Helper()
		for range parts {
			if err := l.arrives(l.call(), part+1, part); err != nil {
				t.Fatal(err)
			}
		}
	}
	some, most, honest := newLink(all), newLink(all), newLink(all)
	keep(some, 80)
	keep(most, 90)
	keep(honest, 10)
	if err := honest.arrives(honest.call(), 40*part, 40*part); err != nil {
		t.Errorf("a long message of another engine: %v", err)
	}
	if err := most.arrives(most.call(), part, part); err == nil {
		t.Error("the engine that keeps the most keeps its connection")
	}
	keep(some, 1)
	if all.all != 91*part {
		t.Errorf("%d bytes count, want %d", all.all, 91*part)
	}
	for _, l := range []*link{some, most, honest} {
		_ = l.agent.Close()
	}
	if all.all != 0 || len(all.of) != 0 {
		t.Errorf("%d bytes of %d engines count after the end", all.all, len(all.of))
	}
}

// TestWhatArrivedDoesNotCount, nor what ended with its call.
func TestWhatArrivedDoesNotCount(t *testing.T) {
	all := NewArriving()
	l := newLink(all)
	for range 2 * maxArriving / (16 << 20) {
		whole, part := l.call(), l.call()
		if err := l.arrives(whole, 16<<20, 16<<20); err != nil {
			t.Fatal(err)
		}
		if err := l.arrives(part, 16<<20, 8<<20); err != nil || all.all != 8<<20 {
			t.Fatalf("%d bytes count: %v", all.all, err)
		}
		var b bytes.Buffer
		_ = http2.NewFramer(&b, nil).WriteRSTStream(part, http2.ErrCodeCancel)
		l.agent.send(b.Bytes())
		if err := l.arrives(whole, 0, 0); err != nil || all.all != 0 {
			t.Fatalf("%d bytes count after the end of the call: %v", all.all, err)
		}
	}
	_ = l.agent.Close()
}
