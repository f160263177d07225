package wire

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

// refuser refuses each text with a long message, and reports its status for ever.
type refuser struct {
	UnimplementedEngineServer
	over chan struct{}
}

func (refuser) Embed(context.Context, *EmbedRequest) (*EmbedResponse, error) {
	long := strings.Repeat("\x7f", 6<<20) // three bytes each in a header
	return nil, Refuse(&Refusal{Code: Code_CODE_INVALID, Message: long, Param: long, NeededBytes: 3})
}

func (r refuser) Watch(_ *WatchRequest, s grpc.ServerStreamingServer[Status]) error {
	if err := s.Send(&Status{State: State_STATE_READY}); err != nil {
		return err
	}
	select {
	case <-r.over:
		return s.Send(&Status{State: State_STATE_DRAINING})
	case <-s.Context().Done():
		return nil
	}
}

// TestAttackARefusalThatIsLongerThanAHeaderList: the connection, and with it the calls of
// all other clients, would end.
func TestAttackARefusalThatIsLongerThanAHeaderList(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	engine := refuser{over: make(chan struct{})}
	g := grpc.NewServer()
	RegisterEngineServer(g, engine)
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }()
	conn, err := Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(); g.Stop(); <-served }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := NewEngineClient(conn)
	other, err := client.Watch(ctx, &WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Recv(); err != nil {
		t.Fatal(err)
	}
	_, err = client.Embed(ctx, &EmbedRequest{Texts: []string{"x"}})
	if r := RefusalOf(err); r.GetCode() != Code_CODE_INVALID || r.GetNeededBytes() != 3 ||
		len(r.GetMessage()) != excerpt.MessageBytes || len(r.GetParam()) != maxParam || len(err.Error()) > 2*excerpt.MessageBytes {
		t.Errorf("refused with %d and %d bytes: %.200v", len(r.GetMessage()), len(r.GetParam()), err)
	}
	close(engine.over)
	if s, err := other.Recv(); err != nil || s.GetState() != State_STATE_DRAINING {
		t.Errorf("the call of another client ended with %.200v", err)
	}
}

// TestAttackALongRefusalOfAnotherProgram: the agent takes no longer one than it would send.
func TestAttackALongRefusalOfAnotherProgram(t *testing.T) {
	long := &Refusal{Message: strings.Repeat("x", 1<<20), Param: strings.Repeat("p", 1<<20), Code: Code_CODE_MEMORY, UsedBytes: 1, NeededBytes: 2, LimitBytes: 3, RetryAfterMilliseconds: 4}
	got := long.Bounded()
	if len(got.GetMessage()) != excerpt.MessageBytes || len(got.GetParam()) != maxParam || len(long.GetMessage()) != 1<<20 ||
		got.GetCode() != long.GetCode() || got.GetUsedBytes() != 1 || got.GetNeededBytes() != 2 || got.GetLimitBytes() != 3 || got.GetRetryAfterMilliseconds() != 4 {
		t.Errorf("%.300v", got)
	}
	short := &Refusal{Message: "m"}
	if short.Bounded() != short || (*Refusal)(nil).Bounded() != nil {
		t.Error("a short refusal was changed")
	}
}
