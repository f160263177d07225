package demand_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	api "metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/test/testenv"
)

// A report is accepted only with a gateway's client certificate.
func TestOnlyGatewaysMayReport(t *testing.T) {
	ca, strangers := agentapitest.NewCA(t), agentapitest.NewCA(t)
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	urgent := make(chan types.NamespacedName, 8)
	ledger := demand.NewLedger(time.Now)
	s := &demand.Server{Ledger: ledger, Address: address, Urgent: func(k types.NamespacedName) { urgent <- k }, Log: testr.New(t),
		TLS: func() *tls.Config { return api.ServerTLS(ca.Server(api.OperatorName).Pair(t), ca.Roots()) }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	post := func(as agentapitest.PEM, body string) (int, error) {
		c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: api.ClientTLS(as.Pair(t), ca.Roots()), ForceAttemptHTTP2: true, DisableKeepAlives: true}}
		answer, err := c.Post("https://"+address+api.Path, "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	good, err := json.Marshal(api.Report{Gateway: "a", UpMillis: 5, Models: []api.Model{{Namespace: "ns", Name: "chat", Waiting: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	for { // until it listens
		code, err := post(ca.Gateway(), string(good))
		if err == nil {
			if code != http.StatusNoContent {
				t.Fatalf("a gateway is answered %d", code)
			}
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatal(err)
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if k := <-urgent; k != key {
		t.Errorf("%v is urgent, want %v", k, key)
	}
	for name, as := range map[string]agentapitest.PEM{"a Mac": ca.Mac("mac-1"), "a stranger": strangers.Gateway()} {
		if code, err := post(as, string(good)); err == nil {
			t.Errorf("%s is answered %d", name, code)
		}
	}
	for name, body := range map[string]string{"no JSON": "x", "lies": `{"gateway":"b","models":[{"namespace":"ns","name":"m","running":-3}]}`} {
		if code, err := post(ca.Gateway(), body); err != nil || code != http.StatusBadRequest {
			t.Errorf("%s: %d, %v", name, code, err)
		}
	}
	if n := ledger.Gateways(); n != 1 {
		t.Errorf("%d gateways are known, want 1", n)
	}
}
