package wire

import (
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/net/http2"
)

// gRPC keeps the frames of a message until it is whole, each in a buffer of its own. An engine sends
// frames of 16 KiB, and a smaller one where a window ends. One that was taken over may send frames of one
// byte, which take 42, and never the last of them.
const (
	// leastFrames is how many frames a message may have however short they are, and meanFrame how many
	// bytes its further frames have on average.
	leastFrames, meanFrame = 64, 4 << 10
	// grpcPrefix is how many bytes come before a message: a flag and its length.
	grpcPrefix = 5
	// mostGoAways is how many GOAWAY frames an engine sends that stops: gRPC logs a line for any more, and
	// reads on while a call is open.
	mostGoAways = 2
)

var (
	errFrames     = errors.New("the engine sent a message in too many small frames")
	errCompressed = errors.New("the engine sent a compressed message, which may take many times its bytes")
	errGoAways    = errors.New("the engine announced the end of its connection again and again")
)

// answers follows the frames of a connection, of which it keeps none. The zero value is for one that was
// not used yet.
type answers struct {
	mu             sync.Mutex
	open           map[uint32]*answer // of the calls that have not ended; guarded by mu
	sent, received frames             // guarded by mu
	preface        int                // bytes sent before the first frame; guarded by mu
	arriving       int64              // bytes of messages that have begun; guarded by mu
	goAways        int                // frames received; guarded by mu
}

// answer is how far the answer to a call is.
type answer struct {
	prefix [grpcPrefix]byte
	known  int   // bytes of prefix
	left   int64 // bytes that the message lacks
	// frames and bytes of the message until now.
	frames, bytes int64
}

// send follows what the agent writes: its calls begin and end.
func (a *answers) send(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(b), len(http2.ClientPreface)-a.preface)
	a.preface += n
	_ = a.sent.each(b[n:], func(f *frames, begins bool, _ []byte) error {
		switch kind := f.kind(); {
		case begins && kind == http2.FrameHeaders:
			if a.open == nil {
				a.open = map[uint32]*answer{}
			}
			a.open[f.stream()] = &answer{}
		case kind == http2.FrameRSTStream:
			a.end(f.stream())
		}
		return nil
	})
}

// receive follows what the engine sent, and refuses what takes many times its bytes.
func (a *answers) receive(b []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.received.each(b, func(f *frames, begins bool, payload []byte) error {
		call, kind, flags := a.open[f.stream()], f.kind(), f.flags()
		if begins && kind == http2.FrameGoAway {
			if a.goAways++; a.goAways > mostGoAways {
				return errGoAways
			}
		}
		if call == nil {
			return nil // gRPC keeps nothing of it
		}
		if kind == http2.FrameData {
			if flags.Has(http2.FlagDataPadded) {
				return errFrames // gRPC pads nothing
			}
			if err := a.take(call, payload, begins && f.length() > 0); err != nil {
				return err
			}
		}
		if f.whole() && (kind == http2.FrameRSTStream || flags.Has(http2.FlagDataEndStream) && (kind == http2.FrameData || kind == http2.FrameHeaders)) {
			a.end(f.stream())
		}
		return nil
	})
}

// take takes bytes of a frame of a call. It is called with mu held.
func (a *answers) take(call *answer, b []byte, begins bool) error {
	before := call.bytes
	err := call.take(b, begins)
	a.arriving += call.bytes - before
	return err
}

// end follows a call no more. It is called with mu held.
func (a *answers) end(stream uint32) {
	if call := a.open[stream]; call != nil {
		a.arriving -= call.bytes
		delete(a.open, stream)
	}
}

// held is how many bytes the messages have that have begun.
func (a *answers) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.arriving
}

// take takes bytes of a frame, which begins with them or has begun before. It refuses a message that has
// too many frames for its bytes, or is compressed.
func (a *answer) take(b []byte, begins bool) error {
	if begins {
		a.frames++
	}
	for len(b) > 0 {
		if a.known < grpcPrefix {
			n := copy(a.prefix[a.known:], b)
			a.known, b = a.known+n, b[n:]
			if a.prefix[0] != 0 {
				return errCompressed // gRPC takes what any library registers with it
			}
			if a.known == grpcPrefix {
				a.left, a.frames, a.bytes = int64(binary.BigEndian.Uint32(a.prefix[1:])), 1, 0
			}
		}
		n := min(a.left, int64(len(b)))
		a.left, a.bytes, b = a.left-n, a.bytes+n, b[n:]
		if a.known == grpcPrefix && a.left == 0 {
			a.known, a.frames, a.bytes = 0, 0, 0
		}
	}
	if a.frames > leastFrames+a.bytes/meanFrame {
		return errFrames
	}
	return nil
}

// frameHeader is how many bytes begin a frame.
const frameHeader = 9

// frames are the frames of one direction, one after the other.
type frames struct {
	header [frameHeader]byte
	known  int // bytes of header
	taken  int // bytes of the payload
}

// each calls do with what b has of the payload of each frame, which may be nothing, and whether the frame
// begins there. It stops at the first error.
func (f *frames) each(b []byte, do func(f *frames, begins bool, payload []byte) error) error {
	for len(b) > 0 {
		begins := f.known < frameHeader
		n := copy(f.header[f.known:], b)
		f.known, b = f.known+n, b[n:]
		if f.known < frameHeader {
			return nil
		}
		n = min(f.length()-f.taken, len(b))
		f.taken += n
		if err := do(f, begins, b[:n]); err != nil {
			return err
		}
		if b = b[n:]; f.whole() {
			*f = frames{}
		}
	}
	return nil
}

func (f *frames) length() int { return int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2]) }

func (f *frames) kind() http2.FrameType { return http2.FrameType(f.header[3]) }

func (f *frames) flags() http2.Flags { return http2.Flags(f.header[4]) }

func (f *frames) stream() uint32 { return binary.BigEndian.Uint32(f.header[5:]) &^ (1 << 31) }

// whole reports whether the frame has ended.
func (f *frames) whole() bool { return f.taken == f.length() }
