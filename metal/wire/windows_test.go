package wire

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// flood is an engine that sends events without end. It counts the bytes of each prompt's answer.
type flood struct {
	UnimplementedEngineServer
	read, unread atomic.Int64
}

func (f *flood) Generate(r *GenerateRequest, s grpc.ServerStreamingServer[GenerateEvent]) error {
	sent, part := &f.read, 1<<20
	if r.GetPrompt() == "unread" {
		sent, part = &f.unread, 1<<14
	}
	event := &GenerateEvent{Event: &GenerateEvent_Delta{Delta: &Delta{Text: strings.Repeat("x", part)}}}
	for {
		if err := s.Send(event); err != nil {
			return err
		}
		sent.Add(int64(part))
	}
}

// TestAnEngineSendsLittleAhead: the agent reads an answer as fast as its client, and what the engine
// sent ahead is in the agent's memory. A stream that is read fast makes that no more for the others.
func TestAnEngineSendsLittleAhead(t *testing.T) {
	const fast, most = 256 << 20, 1 << 19
	engine := &flood{}
	conn, err := NewArriving().DialProcess(serve(t, os.Geteuid(), engine), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(prompt string) grpc.ServerStreamingClient[GenerateEvent] {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		s, err := NewEngineClient(conn).Generate(ctx, &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: prompt}}, grpc.MaxCallRecvMsgSize(2<<20))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for s := ask("read"); engine.read.Load() < fast; {
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	_ = ask("unread")
	for last, same := int64(0), 0; same < 20; time.Sleep(10 * time.Millisecond) {
		now := engine.unread.Load()
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
		if now > most {
			t.Fatalf("the engine sent %d bytes that nothing reads, want at most %d", now, most)
		}
	}
}
