package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// message is what precedes a message of n bytes.
func message(n int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(n)) }

// crumbs is an engine that answers a call with one long message in frames of one byte, and never ends
// it. It returns how many frames were read.
func crumbs(engine net.Conn, most int) (frames int) {
	_, _ = io.ReadFull(engine, make([]byte, len(http2.ClientPreface)))
	f := http2.NewFramer(engine, engine)
	_ = f.WriteSettings()
	var call uint32
	for call == 0 {
		got, err := f.ReadFrame()
		if err != nil {
			return 0
		}
		if h, ok := got.(*http2.HeadersFrame); ok {
			call = h.StreamID
		}
	}
	go func() { _, _ = io.Copy(io.Discard, engine) }() // it ends with the connection
	var h bytes.Buffer
	e := hpack.NewEncoder(&h)
	_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = e.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: call, BlockFragment: h.Bytes(), EndHeaders: true})
	_ = f.WriteData(call, false, message(briefBytes))
	for ; frames < most; frames++ {
		if f.WriteData(call, false, []byte{'x'}) != nil {
			break
		}
	}
	return frames
}

// TestAMessageInManySmallFramesEndsTheConnection: each byte of one takes 42 in the agent, and no limit
// of a message counts them before its end.
func TestAMessageInManySmallFramesEndsTheConnection(t *testing.T) {
	const most = 10_000
	read := make(chan int, 1)
	var dials atomic.Int64
	conn, err := NewArriving().connect(func(context.Context) (net.Conn, error) {
		c, engine := net.Pipe()
		if dials.Add(1) == 1 {
			go func() { read <- crumbs(engine, most) }()
		}
		return c, nil
	}, briefBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		s, err := NewEngineClient(conn).Watch(ctx, &WatchRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		ended <- err
	}()
	if n := <-read; n > 2*leastFrames {
		t.Errorf("the agent reads %d frames of one message that have a byte each", n)
	} else if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errFrames.Error()) {
		t.Errorf("the call ends with %v", err)
	}
	cancel()
}

// TestWhichFramesAreRefused: as many as an honest engine sends are read, however the connection cuts
// them.
func TestWhichFramesAreRefused(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		message, frame int // bytes
		messages       int
		padded, other  bool
		refused        bool
	}{
		"as gRPC cuts a message":                 {message: 8 * mib, frame: 16 << 10, messages: 1},
		"with the rest of a window":              {message: 8 * mib, frame: 5 << 10, messages: 1},
		"many messages of one small frame":       {message: 20, frame: 25, messages: 1000},
		"many messages of few small frames":      {message: 20, frame: 1, messages: 1000},
		"many empty messages in frames of bytes": {frame: 1, messages: 1000},
		"many messages in one frame":             {message: 1, frame: 16 << 10, messages: 20_000},
		"one message of small frames":            {message: 64 << 10, frame: 1, messages: 1, refused: true},
		"frames that take a page each":           {message: mib, frame: 1 << 10, messages: 1, refused: true},
		"padded frames":                          {message: 20, frame: 25, messages: 1, padded: true, refused: true},
		"a call that has ended":                  {message: 64 << 10, frame: 1, messages: 1, other: true},
	} {
		var sent bytes.Buffer
		f := http2.NewFramer(&sent, nil)
		call := uint32(1)
		if c.other {
			call = 3
		}
		_ = f.WriteSettings()
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: call, EndHeaders: true})
		for b := bytes.Repeat(append(message(c.message), make([]byte, c.message)...), c.messages); len(b) > 0; {
			n := min(c.frame, len(b))
			if c.padded {
				_ = f.WriteDataPadded(call, false, b[:n], make([]byte, 200))
			} else {
				_ = f.WriteData(call, false, b[:n])
			}
			b = b[n:]
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: call, EndHeaders: true, EndStream: true})
		for _, longest := range []int{7, 32 << 10} {
			if longest == 7 && sent.Len() > mib {
				continue // takes long
			}
			var a answers
			_ = pieces(twoCalls(), longest, func(b []byte) error { a.send(b); return nil })
			if len(a.open) != 1 {
				t.Fatalf("%s: %d calls are open, want 1", name, len(a.open))
			}
			err := pieces(sent.Bytes(), longest, a.receive)
			if (err != nil) != c.refused {
				t.Errorf("%s, in pieces of up to %d bytes: %v", name, longest, err)
			}
			if err == nil && !c.other && len(a.open) != 0 {
				t.Errorf("%s: a call that has ended is followed", name)
			}
		}
	}
}

// TestWhatEndsTheConnectionAtOnce: a compressed message takes many times its bytes, and gRPC logs a line
// for each GOAWAY. An engine that stops sends two.
func TestWhatEndsTheConnectionAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		flag    byte
		goAways int
		want    error
	}{
		"a message":                            {},
		"a compressed message":                 {flag: 1, want: errCompressed},
		"the announcements of a graceful stop": {goAways: 2},
		"a third announcement":                 {goAways: 3, want: errGoAways},
	} {
		var sent bytes.Buffer
		f := http2.NewFramer(&sent, nil)
		for range c.goAways {
			_ = f.WriteGoAway(1<<31-1, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings"))
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true})
		for _, flag := range []byte{0, c.flag} {
			m := append(message(20), make([]byte, 20)...)
			m[0] = flag
			_ = f.WriteData(1, false, m)
		}
		for _, longest := range []int{1, 7, 32 << 10} {
			var a answers
			_ = pieces(twoCalls(), longest, func(b []byte) error { a.send(b); return nil })
			if err := pieces(sent.Bytes(), longest, a.receive); !errors.Is(err, c.want) {
				t.Errorf("%s, in pieces of up to %d bytes: %v, want %v", name, longest, err, c.want)
			}
		}
	}
}

// twoCalls is what an agent sends that begins the calls 1 and 3, and ends 3.
func twoCalls() []byte {
	var begun bytes.Buffer
	begun.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&begun, nil)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true})
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, EndHeaders: true})
	_ = f.WriteRSTStream(3, http2.ErrCodeCancel)
	return begun.Bytes()
}

// pieces calls do with b, up to that many bytes a time.
func pieces(b []byte, longest int, do func([]byte) error) error {
	for len(b) > 0 {
		n := min(len(b), 1+rand.IntN(longest))
		if err := do(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// odd is an engine whose messages end at no window.
type odd struct{ UnimplementedEngineServer }

func (odd) Generate(r *GenerateRequest, s grpc.ServerStreamingServer[GenerateEvent]) error {
	for n := range 12 {
		text := strings.Repeat("x", (int(r.GetMaxTokens())*7919+n*104_729)%(700<<10))
		if err := s.Send(&GenerateEvent{Event: &GenerateEvent_Delta{Delta: &Delta{Text: text}}}); err != nil {
			return err
		}
	}
	return nil
}

// TestHonestEnginesKeepTheirConnection, however many answers share its windows.
func TestHonestEnginesKeepTheirConnection(t *testing.T) {
	conn, err := NewArriving().DialProcess(serve(t, os.Geteuid(), odd{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var calls sync.WaitGroup
	for call := range int64(16) {
		calls.Go(func() {
			s, err := NewEngineClient(conn).Generate(t.Context(), &GenerateRequest{MaxTokens: call})
			for err == nil {
				_, err = s.Recv()
			}
			if err != io.EOF {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}
