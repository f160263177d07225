package demand_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	api "metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/test/testenv"
)

// port is a demand.Server for the gateways of an authority.
type port struct {
	ledger *demand.Ledger
	urgent chan types.NamespacedName
	ca     *agentapitest.CA
	url    string
	ended  chan error
}

// listen starts a server, which ends with the test.
func listen(t *testing.T, ca *agentapitest.CA) *port {
	t.Helper()
	n, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", n)
	p := &port{ledger: demand.NewLedger(time.Now), urgent: make(chan types.NamespacedName, 8), ca: ca, url: "https://" + address + api.Path, ended: make(chan error, 1)}
	s := &demand.Server{Ledger: p.ledger, Address: address, Urgent: func(k types.NamespacedName) { p.urgent <- k }, Log: testr.New(t),
		TLS: func() *tls.Config { return api.ServerTLS(ca.Server(api.OperatorName).Pair(t), ca.Roots()) }}
	ctx, stop := context.WithCancel(t.Context())
	go func() { p.ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
	})
	return p
}

// post sends a report with a client certificate, and returns the status code.
func (p *port) post(t *testing.T, as agentapitest.PEM, body string) (int, error) {
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: api.ClientTLS(as.Pair(t), p.ca.Roots()), ForceAttemptHTTP2: true, DisableKeepAlives: true}}
	answer, err := c.Post(p.url, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// postFirst sends the first report of a gateway, as soon as the server listens.
func (p *port) postFirst(t *testing.T, body string) {
	t.Helper()
	for {
		code, err := p.post(t, p.ca.Gateway(), body)
		if err == nil {
			if code != http.StatusNoContent {
				t.Fatalf("a gateway is answered %d", code)
			}
			return
		}
		select {
		case err := <-p.ended:
			p.ended <- err
			t.Fatal(err)
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A report is accepted only with a gateway's client certificate.
func TestOnlyGatewaysMayReport(t *testing.T) {
	ca, strangers := agentapitest.NewCA(t), agentapitest.NewCA(t)
	p := listen(t, ca)
	report, err := json.Marshal(api.Report{Gateway: "a", UpMillis: 5, Models: []api.Model{{Namespace: "ns", Name: "chat", Waiting: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	good := string(report)
	p.postFirst(t, good)
	if k := <-p.urgent; k != key {
		t.Errorf("%v is urgent, want %v", k, key)
	}
	for name, as := range map[string]agentapitest.PEM{"a Mac": ca.Mac("mac-1"), "a stranger": strangers.Gateway()} {
		if code, err := p.post(t, as, good); err == nil {
			t.Errorf("%s is answered %d", name, code)
		}
	}
	for name, body := range map[string]string{"no JSON": "x", "lies": `{"gateway":"b","models":[{"namespace":"ns","name":"m","running":-3}]}`} {
		if code, err := p.post(t, ca.Gateway(), body); err != nil || code != http.StatusBadRequest {
			t.Errorf("%s: %d, %v", name, code, err)
		}
	}
	if n := p.ledger.Gateways(); n != 1 {
		t.Errorf("%d gateways are known, want 1", n)
	}
}

// TestReportsOfAnAddressAreReadAFewAtATime: each takes memory until it is read.
func TestReportsOfAnAddressAreReadAFewAtATime(t *testing.T) {
	s := &demand.Server{Ledger: demand.NewLedger(time.Now), Log: testr.New(t)}
	post := func(from string, body io.Reader) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, api.Path, body)
		r.RemoteAddr = from + ":1"
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code
	}
	var slow []*io.PipeWriter
	var all sync.WaitGroup
	for range 4 {
		body, write := io.Pipe()
		all.Go(func() { post("10.6.6.6", body) })
		if _, err := write.Write([]byte(" ")); err != nil { // it is being read
			t.Fatal(err)
		}
		slow = append(slow, write)
	}
	good := `{"gateway":"a","upMillis":5}`
	if code := post("10.6.6.6", strings.NewReader(good)); code != http.StatusTooManyRequests {
		t.Errorf("a fifth report is answered %d", code)
	}
	if code := post("10.0.0.1", strings.NewReader(good)); code != http.StatusNoContent {
		t.Errorf("another gateway is answered %d", code)
	}
	for _, write := range slow {
		_ = write.Close()
	}
	all.Wait()
	if code := post("10.6.6.6", strings.NewReader(good)); code != http.StatusNoContent {
		t.Errorf("afterwards it is answered %d", code)
	}
}
