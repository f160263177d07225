package servetest

import (
	"context"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Subject is an implementation under test, with one replica that is ready and
// one that is not.
type Subject struct {
	Engines  serve.Engines
	Model    string // a name of Ready
	Ready    serve.Target
	NotReady serve.Target
	// Request that Ready answers with some text.
	Request func() *wire.GenerateRequest
}

// patience bounds every wait of the suite.
const patience = 2 * time.Minute

// Run checks an implementation of serve.Engines.
func Run(t *testing.T, s Subject) {
	t.Run("names lead to targets", func(t *testing.T) {
		if got, ok := s.Engines.Resolve(s.Model); !ok || got != s.Ready {
			t.Errorf("Resolve(%q) = %v, %v; want %v", s.Model, got, ok, s.Ready)
		}
		if _, ok := s.Engines.Resolve("unknown/model"); ok {
			t.Error("resolved a name that nothing serves")
		}
		if m, ok := s.Engines.Model(s.Model); !ok || m.ID != s.Model {
			t.Errorf("Model(%q) = %v, %v", s.Model, m, ok)
		}
		if _, ok := s.Engines.Model("unknown/model"); ok {
			t.Error("there is a model that nothing serves")
		}
		list := s.Engines.Models()
		for _, m := range list {
			_, leads := s.Engines.Resolve(m.ID)
			if one, ok := s.Engines.Model(m.ID); !leads || !ok || !reflect.DeepEqual(one, m) {
				t.Errorf("Models() has %v, and by its name is %v, %v", m, one, ok)
			}
		}
		if len(list) == 0 {
			t.Error("Models() is empty")
		}
	})
	t.Run("what is not here or not ready gives no hold", func(t *testing.T) {
		other := s.Ready
		other.Epoch++
		for target, want := range map[serve.Target]error{
			other:                             serve.ErrNotHere,
			{ReplicaUID: "unknown", Epoch: 1}: serve.ErrNotHere,
			s.NotReady:                        serve.ErrNotReady,
		} {
			h, err := s.Engines.Acquire(t.Context(), target)
			if !errors.Is(err, want) {
				t.Errorf("Acquire(%v) = %v, want %v", target, err, want)
			}
			if h != nil {
				h.Release()
			}
		}
	})
	t.Run("an answer is Admitted, text, Finished, end", s.answers)
	t.Run("a cancelled request ends", s.cancels)
}

func (s Subject) begin(t *testing.T) (serve.Stream, context.CancelFunc) {
	t.Helper()
	hold, err := s.Engines.Acquire(t.Context(), s.Ready)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hold.Release(); hold.Release() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	stream, err := hold.Generate(ctx, s.Request())
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetAdmitted() == nil {
		t.Fatalf("first event = %v, %v; want Admitted", first, err)
	}
	return stream, cancel
}

func (s Subject) answers(t *testing.T) {
	stream, _ := s.begin(t)
	text, finished := "", 0
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if finished > 0 || e.GetAdmitted() != nil {
			t.Fatalf("%v comes too late", e)
		}
		text += e.GetDelta().GetText()
		if e.GetFinished() != nil {
			finished++
		}
	}
	if finished != 1 || text == "" {
		t.Errorf("finished %d times, text %q", finished, text)
	}
}

func (s Subject) cancels(t *testing.T) {
	stream, cancel := s.begin(t)
	cancel()
	ended := make(chan error, 1)
	go func() { // ends with the stream
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the stream went on after its request was cancelled")
	}
}
