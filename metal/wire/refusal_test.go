package wire

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

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

// TestAListThatIsLongerThanARefusalEndsItsCall: an engine that was taken over sends one in each call, also if
// the agent asks for shorter ones. The agent would keep its details, in many times their bytes.
func TestAListThatIsLongerThanARefusalEndsItsCall(t *testing.T) {
	for details, want := range map[int]codes.Code{1000: codes.InvalidArgument, 6100: codes.Internal} {
		status := append([]byte{8, byte(codes.InvalidArgument)}, bytes.Repeat([]byte{3<<3 | 2, 0}, details/2)...) // empty details
		conn, err := NewArriving().connect(func(context.Context) (net.Conn, error) {
			c, engine := net.Pipe()
			go refuses(engine, base64.RawStdEncoding.EncodeToString(status))
			return c, nil
		}, briefBytes)
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewEngineClient(conn).Embed(t.Context(), &EmbedRequest{})
		if s := grpcstatus.Convert(err); s.Code() != want || want == codes.Internal && len(s.Proto().GetDetails()) > 0 {
			t.Errorf("%d bytes: %v with %d details, want %v", details, s.Code(), len(s.Proto().GetDetails()), want)
		}
		_ = conn.Close()
	}
}

// refuses is an engine that ends the first call with a status in this form.
func refuses(engine net.Conn, status string) {
	_, _ = io.ReadFull(engine, make([]byte, len(http2.ClientPreface)))
	f := http2.NewFramer(engine, engine)
	_ = f.WriteSettings()
	for {
		got, err := f.ReadFrame()
		if err != nil {
			return
		}
		h, ok := got.(*http2.HeadersFrame)
		if !ok {
			continue
		}
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for _, field := range [][2]string{{":status", "200"}, {"content-type", "application/grpc"}, {"grpc-status", "3"}, {"grpc-status-details-bin", status}} {
			_ = e.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
		}
		go func() {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: true})
		}()
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
