package server_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/server"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Requests are received one after another, because each takes three times its size
// meanwhile. What else an engine is asked does not wait for them.
func TestAttackManyLargeRequestsArriveAtOnce(t *testing.T) {
	s := serve(t, engine.Options{})
	s.await(t, wire.State_STATE_READY)
	conn, err := wire.Dial(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	arriving, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := conn.NewStream(arriving, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, wire.Engine_Generate_FullMethodName); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	waits := func() bool {
		go func() {
			stream, err := s.client.Generate(t.Context(), &wire.GenerateRequest{MaxTokens: 1, Input: &wire.GenerateRequest_Prompt{Prompt: "a"}})
			if err == nil {
				_, err = stream.Recv()
			}
			answered <- err
		}()
		select {
		case <-answered:
			return false
		case <-time.After(time.Second):
			return true
		}
	}
	for n := 1; !waits(); n++ { // the other one may not have begun to arrive
		if n == 50 {
			t.Fatalf("%d requests were answered while another one arrived, want them to wait", n)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := s.client.Hello(t.Context(), &wire.HelloRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}}); err != nil {
		t.Errorf("Hello while a request arrives: %v", err)
	}
	cancel()
	select {
	case err := <-answered:
		if err != nil {
			t.Errorf("the request after one that was left: %v", err)
		}
	case <-time.After(patience):
		t.Error("the request was not answered after the other one was left")
	}
}

// Others wait while a long request is received, so that its sender need not wait for the engine
// after every few kilobytes: it is busy with their answers.
func TestLongRequestsArriveInFewSteps(t *testing.T) {
	s := serve(t, engine.Options{})
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = f.WriteSettings()
	}
	for window := uint32(1<<16 - 1); err == nil && window < 1<<20; {
		var frame http2.Frame
		if frame, err = f.ReadFrame(); err != nil {
			t.Errorf("%d bytes may be sent at once", window)
		}
		if more, ok := frame.(*http2.WindowUpdateFrame); ok && more.StreamID == 0 {
			window += more.Increment
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// TestAttackTextsForVectorsArriveAtOnce: they take turns with all others, and the error of a model for
// text still arrives.
func TestAttackTextsForVectorsArriveAtOnce(t *testing.T) {
	s := serve(t, engine.Options{})
	s.await(t, wire.State_STATE_READY)
	conn, err := wire.Dial(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for method, ask := range map[string]func(context.Context) error{
		wire.Engine_Embed_FullMethodName: func(ctx context.Context) error {
			_, err := s.client.Embed(ctx, &wire.EmbedRequest{Texts: []string{"a"}})
			return err
		},
		wire.Engine_Rerank_FullMethodName: func(ctx context.Context) error {
			_, err := s.client.Rerank(ctx, &wire.RerankRequest{Documents: []string{"a"}})
			return err
		},
	} {
		if r := wire.RefusalOf(ask(t.Context())); r.GetCode() != wire.Code_CODE_INVALID || r.GetParam() != "model" {
			t.Errorf("%s of a model for text: %v", method, r)
		}
		arriving, cancel := context.WithCancel(t.Context())
		if _, err := conn.NewStream(arriving, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method); err != nil {
			t.Fatal(err)
		}
		waits := func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return status.Code(ask(ctx)) == codes.DeadlineExceeded
		}
		for n := 1; !waits(); n++ { // the other one may not have begun to arrive
			if n == 50 {
				t.Fatalf("%s: %d requests were answered while another one arrived", method, n)
			}
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
		if wire.RefusalOf(ask(deadline(t))) == nil {
			t.Errorf("%s is not answered after another one was left", method)
		}
	}
}

// TestAttackManyRequestsOfOneTenantArrive: one of another tenant waits for the one that arrives and
// for the next.
func TestAttackManyRequestsOfOneTenantArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		received := make(chan string, 16)
		handle := server.Receiving(func(ctx context.Context) {
			time.Sleep(time.Second)
			received <- wire.TenantOf(ctx)
		})
		ask := func(tenant string) {
			go handle(metadata.NewIncomingContext(t.Context(), metadata.Pairs("tenant-bin", tenant)))
			synctest.Wait()
		}
		for range 8 {
			ask("hog")
		}
		ask("victim")
		for before := range 9 {
			if <-received == "victim" && before > 2 { // the one that arrives, and the one whose turn is next
				t.Errorf("%d requests of one tenant were received before that of another", before)
			}
		}
	})
}
