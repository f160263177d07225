package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/gateway/route"
)

// proving returns a model of replicas on Macs, of which the first n are proving and the others are full.
func proving(t *testing.T, n int, macs ...string) (*route.Model, *Dispatcher) {
	t.Helper()
	model, d := busyModel(macs...)
	for _, mac := range macs[:n] {
		for i := range 5 {
			d.queue.slots.outliers.Ended(mac, []string{"t", "u"}[i%2], true, time.Now())
		}
	}
	for _, mac := range macs[n:] {
		for range slotsPerSequence * 2 {
			if lease, _ := arrive(t, d, model, Request{Owner: "t", OnlyMac: mac}); lease == nil {
				t.Fatalf("%s is full too early", mac)
			}
		}
	}
	time.Sleep(15 * time.Second)
	return model, d
}

// TestAReplicaThatProvesIsNotKeptByOneRequest: after the time of an answer it gets another one, also while
// the first still runs. Requests that no other Mac can serve prove nothing.
func TestAReplicaThatProvesIsNotKeptByOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := proving(t, 1, "a", "b")
		if lease, _ := arrive(t, d, model, Request{Owner: "t", OnlyMac: "a"}); lease == nil {
			t.Fatal("a request that no other Mac can serve waits")
		}
		if lease, _ := arrive(t, d, model, Request{Owner: "t"}); lease == nil {
			t.Fatal("a request for one Mac keeps others from it")
		}
		_, w := arrive(t, d, model, Request{Owner: "t"})
		time.Sleep(lingerMax - 1)
		if synctest.Wait(); len(w.granted) != 0 {
			t.Error("two requests prove at once")
		}
		time.Sleep(1 * time.Nanosecond)
		if synctest.Wait(); len(w.granted) != 1 {
			t.Error("a request that runs for longer than an answer takes keeps others from the replica")
		}
	})
}

// TestAtMostHalfOfTheReplicasAreKeptByOneRequestEach, as after the network of a site was lost.
func TestAtMostHalfOfTheReplicasAreKeptByOneRequestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model, d := proving(t, 3, "a", "b", "c", "d")
		sent := 0
		for range 12 {
			if lease, _ := arrive(t, d, model, Request{Owner: "t"}); lease != nil {
				sent++
			}
		}
		if want := 2 + slotsPerSequence*2; sent != want {
			t.Errorf("%d requests were sent, want %d", sent, want)
		}
	})
}
