package dispatch

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/route"
)

// fiveMacs returns a model with a replica on each of five Macs, and a dispatcher at which
// requests may wait.
func fiveMacs() (*route.Model, *Dispatcher) {
	table, key := route.NewTable(), route.Key{Namespace: "ns", Name: "m"}
	table.MarkSynced()
	table.SetDeployment(route.Deployment{Key: key, UID: "1", Names: "m"})
	for i := range 5 {
		mac := fmt.Sprint("mac-", i)
		table.SetMac(route.Mac{Name: mac, Address: "h:1", Open: true})
		table.SetReplica(route.Replica{UID: mac, Deployment: key, DeploymentUID: "1", Mac: mac, Ready: true, Sequences: 8})
	}
	model, _ := table.Lookup("m")
	return model, New(Config{Queue: fairqueue.Limits{Count: 5000, Bytes: 5000, Age: time.Hour}, KeepAlive: time.Hour, Registry: prometheus.NewRegistry()})
}

// rejectionsAt sends requests to a model for a minute. The first of its Macs rejects at once,
// as do all if wrong is true; an answer takes ten seconds. It returns how many requests ended at
// each Mac, and how many still wait.
func rejectionsAt(t *testing.T, perSecond int, wrong bool) (ended map[string]int, waiting int) {
	model, d := fiveMacs()
	ctx, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	ended = map[string]int{}
	answers := make(chan string, 60*perSecond)
	for i := range 60 * perSecond {
		wg.Go(func() {
			r := &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, Owner: "t"}
			if !wrong {
				r.Owner = fmt.Sprint("t", i%50)
			}
			lease, err := d.Acquire(ctx, r)
			if err != nil {
				return
			}
			how := OutcomeRejected
			if lease.Mac != "mac-0" && !wrong {
				how = OutcomeAnswered
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
					return
				}
			}
			lease.Release()
			lease.Observe(how)
			answers <- lease.Mac
		})
		time.Sleep(time.Second / time.Duration(perSecond))
	}
	synctest.Wait()
	for len(answers) > 0 {
		ended[<-answers]++
	}
	waiting = len(d.queue.waiters)
	end()
	wg.Wait()
	return ended, waiting
}

// TestAttackAMacThatRejectsAtOnce: it gets no larger share of the requests than Macs that
// answer, whether there is room elsewhere or requests wait.
func TestAttackAMacThatRejectsAtOnce(t *testing.T) {
	for name, perSecond := range map[string]int{"room elsewhere": 5, "requests wait": 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended, waiting := rejectionsAt(t, perSecond, false)
				t.Logf("%v, %d wait", ended, waiting)
				if honest := ended["mac-1"]; ended["mac-0"] > 2*honest || honest < 30 {
					t.Errorf("%d requests were rejected by one Mac while another answered %d", ended["mac-0"], honest)
				}
			})
		})
	}
}

// TestWrongRequestsKeepNoReplicaBusy: those that every Mac rejects end at once, and wait for no
// slot.
func TestWrongRequestsKeepNoReplicaBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, waiting := rejectionsAt(t, 200, true)
		for i := range 5 {
			if n := ended[fmt.Sprint("mac-", i)]; n < 12000/5*9/10 {
				t.Errorf("a Mac has rejected %d of 12,000 requests", n)
			}
		}
		if waiting > 0 {
			t.Errorf("%d requests wait", waiting)
		}
	})
}

// TestAClientAvoidsAMacThatRejectsItsRequests: it gets few of a client whose requests others
// answer; requests that the client sent to one Mac do not count.
func TestAClientAvoidsAMacThatRejectsItsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := fiveMacs()
		ended := map[string]int{}
		ask := func(owner, onlyMac, rejects string) {
			lease, err := d.Acquire(t.Context(), &Request{Candidates: []*route.Model{model}, Log: logr.Discard, Client: patient{}, Owner: owner, OnlyMac: onlyMac})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			lease.Release()
			how := OutcomeAnswered
			if lease.Mac == rejects {
				how = OutcomeRejected
			}
			ended[owner+"/"+lease.Mac]++
			lease.Observe(how)
		}
		avoids := func(owner, mac string) bool { return d.queue.slots.rejected.Standing(owner, mac, time.Now()).Ejected() }
		for range 200 {
			ask("a", "", "mac-0")
			ask("b", "mac-1", "mac-1")
			ask("b", "mac-2", "")
			if avoids("b", "mac-1") || avoids("b", "mac-0") {
				t.Fatal("a client avoids a Mac that gave it no reason")
			}
			time.Sleep(time.Second)
		}
		if n := ended["a/mac-0"]; n > 40 {
			t.Errorf("one Mac rejected %d of a client's 200 requests, others none", n)
		}
	})
}
