package proxy_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/route"
)

func TestDemandCountsRunningAndWaitingRequests(t *testing.T) {
	w := newWorld(t, queueOf(10))
	hold := make(chan struct{})
	w.addMac("a", func(rw http.ResponseWriter, r *http.Request) { <-hold; say("{}")(rw, r) })
	report := func() (r demand.Report) {
		r.Gateway = "g"
		w.proxy.Demand(&r)
		if err := r.Check(); err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		return r
	}
	if r := report(); len(r.Models)+len(r.Replicas) > 0 {
		t.Errorf("before any request: %+v", r)
	}
	running := w.later(t.Context(), chatBody)
	eventually(t, "one runs", func() bool { r := report(); return len(r.Models) == 1 && r.Models[0].Running == 1 })
	w.setReady("a", false)
	waits := w.later(t.Context(), chatBody)
	w.waiting(1)
	eventually(t, "a demand report", func() bool {
		select {
		case <-w.proxy.Waiting():
			return true
		default:
			return false
		}
	})
	eventually(t, "it has waited", func() bool { return report().Models[0].OldestMillis > 0 })
	m := report().Models[0]
	if m.Namespace != "ns" || m.Name != "m" || m.Running != 1 || m.Waiting != 1 || m.Begun != 2 || len(report().Replicas) != 1 {
		t.Errorf("%+v", report())
	}
	close(hold)
	running.want(t, 200, "{}")
	w.setReady("a", true)
	waits.want(t, 200, "{}")
	w.idle()
	if r := report(); r.Models[0].Running+r.Models[0].Waiting > 0 || len(r.Replicas) > 0 || r.Models[0].Begun != 2 {
		t.Errorf("at the end: %+v", r)
	}
}

// Without a replica there is no pace, so the estimate is the duration of the last start.
func TestAWaiterForTheFirstReplicaGetsAnEstimate(t *testing.T) {
	w := newWorld(t, queueOf(10))
	w.addMac("a", say("{}"))
	w.setReady("a", false)
	w.table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "m"}, UID: "m", Names: "m", Start: 40 * time.Second})
	l := w.later(t.Context(), chatBody)
	w.waiting(1)
	w.setReady("a", true)
	l.want(t, 200, "{}")
	eta, err := strconv.Atoi(l.resp.Header.Get(agentapi.HeaderQueueETA))
	if err != nil || eta < 1 || eta > 40 {
		t.Errorf("ETA %q, want up to 40 s", l.resp.Header.Get(agentapi.HeaderQueueETA))
	}
}
