package wire

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wordy is an engine with a message of that many bytes.
type wordy struct {
	UnimplementedEngineServer
	bytes int
}

func (e wordy) Watch(_ *WatchRequest, s grpc.ServerStreamingServer[Status]) error {
	return s.Send(&Status{Message: strings.Repeat("x", e.bytes)})
}

func (e wordy) Generate(_ *GenerateRequest, s grpc.ServerStreamingServer[GenerateEvent]) error {
	return s.Send(&GenerateEvent{Event: &GenerateEvent_Delta{Delta: &Delta{Text: strings.Repeat("x", e.bytes)}}})
}

// TestAStatusOfManyBytesIsRefused: an engine that was taken over sends one after the other, and each
// is in memory before its texts are cut.
func TestAStatusOfManyBytesIsRefused(t *testing.T) {
	for bytes, want := range map[int]codes.Code{briefBytes / 2: codes.OK, 2 * briefBytes: codes.ResourceExhausted} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		RegisterEngineServer(g, wordy{bytes: bytes})
		served := make(chan struct{})
		go func() { defer close(served); _ = g.Serve(l) }() // it ends with Stop
		conn, err := NewArriving().DialProcess(l.Addr().String(), os.Getpid)
		if err != nil {
			t.Fatal(err)
		}
		c := NewEngineClient(conn)
		watch, err := c.Watch(t.Context(), &WatchRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		if got := status.Code(err); got != want {
			t.Errorf("a status of %d bytes: %v", bytes, err)
		}
		events, err := c.Generate(t.Context(), &GenerateRequest{}, grpc.MaxCallRecvMsgSize(4*briefBytes))
		if err == nil {
			_, err = events.Recv()
		}
		if err != nil {
			t.Errorf("an event of %d bytes, whose call has another bound: %v", bytes, err)
		}
		_ = conn.Close()
		g.Stop()
		<-served
	}
}
