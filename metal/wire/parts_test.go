//go:build !race

package wire

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// hollow is an engine that sends messages of empty parts.
type hollow struct {
	UnimplementedEngineServer
	parts int
}

// of returns a message with parts in a list, which may be in fields of messages.
func of[M proto.Message](m M, parts int, list protowire.Number, in ...protowire.Number) M {
	b := bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, list, protowire.BytesType), nil), parts)
	for _, field := range in {
		b = protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
	}
	m.ProtoReflect().SetUnknown(b)
	return m
}

func (e hollow) Embed(context.Context, *EmbedRequest) (*EmbedResponse, error) {
	return of(&EmbedResponse{}, e.parts, 1), nil
}

func (e hollow) Rerank(context.Context, *RerankRequest) (*RerankResponse, error) {
	s, err := status.New(codes.Internal, "").WithDetails(slices.Repeat([]protoadapt.MessageV1{&Refusal{}}, e.parts/20)...)
	if err != nil {
		return nil, err
	}
	return nil, s.Err()
}

func (e hollow) Generate(_ *GenerateRequest, s grpc.ServerStreamingServer[GenerateEvent]) error {
	return s.Send(of(&GenerateEvent{}, e.parts, 3, 2)) // log-probabilities in a delta
}

func (e hollow) Cache(s grpc.BidiStreamingServer[CacheLease, CacheReport]) error {
	return s.Send(of(&CacheReport{}, e.parts, 6)) // keys
}

// decoded calls an engine that sends messages of that many parts, and returns what each takes.
func decoded(t *testing.T, parts int) map[string]int64 {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	RegisterEngineServer(g, hollow{parts: parts})
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }() // it ends with Stop
	conn, err := Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(); g.Stop(); <-served }()
	c, got := NewEngineClient(conn), map[string]int64{}
	for name, call := range map[string]func() (any, error){
		"vectors": func() (any, error) { return c.Embed(t.Context(), &EmbedRequest{}) },
		"a refusal": func() (any, error) {
			_, err := c.Rerank(t.Context(), &RerankRequest{})
			return status.Convert(err).Details(), nil
		},
		"an event": func() (any, error) {
			s, err := c.Generate(t.Context(), &GenerateRequest{})
			if err != nil {
				return nil, err
			}
			return s.Recv()
		},
		"a report of the disk cache": func() (any, error) {
			s, err := c.Cache(t.Context())
			if err != nil {
				return nil, err
			}
			return s.Recv()
		},
	} {
		before := heapOf()
		kept, err := call()
		if taken := heapOf() - before; err == nil {
			got[name] = taken
		}
		runtime.KeepAlive(kept)
	}
	return got
}

func heapOf() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMessagesOfManyEmptyPartsAreNotDecoded: an empty part has 2 bytes in a message, and 45 times
// as many in the agent.
func TestMessagesOfManyEmptyPartsAreNotDecoded(t *testing.T) {
	for name, bytes := range decoded(t, 2*maxParts/elementBytes) {
		if bytes > 8<<20 {
			t.Errorf("%s takes %d bytes", name, bytes)
		}
	}
	if got := decoded(t, maxParts/messageBytes/2); len(got) != 3 || got["an event"] != 0 {
		t.Errorf("some messages of fewer parts are refused, or an event is not: %v", got)
	}
	if got := decoded(t, maxEventParts/messageBytes/2); len(got) != 4 {
		t.Errorf("some messages of few parts are refused: %v", got)
	}
}
