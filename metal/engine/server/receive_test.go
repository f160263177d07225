package server_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/engine"
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
