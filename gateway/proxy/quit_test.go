package proxy

import (
	"errors"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/gateway/route"
	"metalfleet.dev/metalfleet/gateway/waiting"
)

// TestAnEndpointThatIsGivenTooLateIsGivenBack: a client may leave in the moment
// in which its turn comes.
func TestAnEndpointThatIsGivenTooLateIsGivenBack(t *testing.T) {
	table := route.NewTable()
	key := route.Key{Namespace: "ns", Name: "m"}
	table.SetDeployment(route.Deployment{Key: key, UID: "1", Names: "m"})
	table.SetMac(route.Mac{Name: "a", Address: "h:1", Open: true})
	table.SetReplica(route.Replica{UID: "r", Deployment: key, DeploymentUID: "1", Mac: "a", Ready: true})
	model, _ := table.Lookup("m")
	p := &Proxy{book: newBook(waiting.Limits{Count: 5, Bytes: 5, Age: time.Minute})}
	enter := func() *seat {
		s := &seat{Waiter: &waiting.Waiter{Model: key.String()}, query: &query{model: model}, granted: make(chan grant, 1), sent: make(chan error, 1)}
		if _, err := p.book.enter(s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	running := func(want int) {
		t.Helper()
		if n := p.book.models[key].inFlight; n != want {
			t.Errorf("%d run, want %d", n, want)
		}
	}
	s := enter() // and there is an endpoint for it
	running(1)
	if _, err := p.quit(s, errClientGone); !errors.Is(err, errClientGone) {
		t.Errorf("quit says %v", err)
	}
	running(0)
	g, err := p.quit(enter(), waiting.ErrLate) // in time after all
	if err != nil || g.Replica != "r" {
		t.Errorf("a turn that came with the deadline: %+v, %v", g, err)
	}
	running(1)
	g.release()
	running(0)
	if len(p.book.seats) != 0 || p.book.room.Len(key.String()) != 0 {
		t.Error("somebody still waits")
	}
}
