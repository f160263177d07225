package dispatch

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestAMacThatConnectsAllTheTime has the requests that wait looked at a few times in a second, and
// once more after its last connection.
func TestAMacThatConnectsAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		var open atomic.Bool
		d := New(Config{Queue: fairqueue.Limits{Count: 10, Bytes: 10, Age: time.Minute}, Registry: prometheus.NewRegistry(),
			CanReach: func(route.Endpoint) bool {
				looks.Add(1)
				return open.Load()
			}})
		_, w := arrive(t, d, newModel("r"), Request{Owner: "a"})
		looks.Store(0)
		for range 1000 {
			d.Notify()
			time.Sleep(time.Millisecond)
		}
		if n := looks.Load(); n < 5 || n > 20 {
			t.Errorf("replicas were looked at %d times in a second of 1,000 connections", n)
		}
		d.Notify()
		open.Store(true)
		time.Sleep(notifyEvery)
		synctest.Wait()
		if len(w.granted) != 1 {
			t.Error("a request still waits after the last connection")
		}
		time.Sleep(time.Second)
		_, w = arrive(t, d, newModel("r"), Request{Owner: "a"})
		if w != nil {
			t.Fatal("a request waits for a Mac that is reached")
		}
	})
}
