package demand_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	api "metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/gateway/demand"
	"metalfleet.dev/metalfleet/gateway/identity"
)

// operator receives reports over the network.
type operator struct {
	reports chan api.Report
	address string
	server  *http.Server
}

func startOperator(t *testing.T, ca *agentapitest.CA, address string) *operator {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	o := &operator{reports: make(chan api.Report, 1000), address: l.Addr().String()}
	o.server = &http.Server{TLSConfig: api.ServerTLS(ca.Server(api.OperatorName).Pair(t), ca.Roots()),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var report api.Report
			if err := json.NewDecoder(r.Body).Decode(&report); err != nil || report.Check() != nil || r.URL.Path != api.Path {
				t.Errorf("report %+v: %v", report, err)
			}
			o.reports <- report
			w.WriteHeader(http.StatusNoContent)
		})}
	go func() { _ = o.server.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = o.server.Close() })
	return o
}

func TestReportsAreSentRegularlyAndAtTheEnd(t *testing.T) {
	ca := agentapitest.NewCA(t)
	leaf := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": leaf.Certificate, "tls.key": leaf.Key, "ca.crt": leaf.CA})
	if err != nil {
		t.Fatal(err)
	}
	o := startOperator(t, ca, "127.0.0.1:0")
	var current atomic.Pointer[identity.Identity]
	var waits atomic.Int64
	wakes := make(chan struct{}, 1)
	p := &demand.Publisher{Operator: o.address, Identity: current.Load, Waiting: wakes, Log: testr.New(t),
		Fill: func(r *api.Report) {
			r.Models = []api.Model{{Namespace: "ns", Name: "m", Waiting: int(waits.Load())}}
		}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Run(ctx) }()
	current.Store(id) // it is loaded shortly after the start of a gateway
	first := <-o.reports
	waits.Store(1)
	wakes <- struct{}{}
	for r := range o.reports {
		if r.Gateway != first.Gateway {
			t.Fatalf("two gateways: %+v and %+v", first, r)
		}
		if r.Models[0].Waiting == 1 {
			break
		}
	}
	// The operator stops, and restarts at its address.
	_ = o.server.Close()
	o = startOperator(t, ca, o.address)
	if r := <-o.reports; r.Gateway != first.Gateway || r.Last {
		t.Errorf("after the operator was away: %+v", r)
	}
	stop()
	<-ended
	last := api.Report{}
	for len(o.reports) > 0 {
		last = <-o.reports
	}
	if !last.Last {
		t.Errorf("the last report is %+v, and does not say so", last)
	}
}

func TestReportsAreSentOnlyToTheOperator(t *testing.T) {
	ca := agentapitest.NewCA(t)
	leaf := ca.Gateway()
	id, err := identity.Parse(map[string][]byte{"tls.crt": leaf.Certificate, "tls.key": leaf.Key, "ca.crt": leaf.CA})
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Bool
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	impostor := &http.Server{TLSConfig: api.ServerTLS(ca.Server("mac-1.mac.metalfleet.dev").Pair(t), ca.Roots()),
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) })}
	go func() { _ = impostor.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = impostor.Close() })
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	p := &demand.Publisher{Operator: l.Addr().String(), Identity: func() *identity.Identity { return id }, Fill: func(*api.Report) {}, Log: testr.New(t)}
	p.Run(ctx)
	if asked.Load() {
		t.Error("a Mac's certificate passes for the operator's")
	}
}
