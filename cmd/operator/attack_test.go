package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"metalfleet.dev/metalfleet/api/logs"
)

// TestAttackLogInjection: names from tenants and reports from Macs stay inside one quoted
// value of one line, as a message, as an error and as a value.
func TestAttackLogInjection(t *testing.T) {
	const evil = "x\ntime=2000 level=ERROR msg=forged\r\u2028\x1b[2J\x07\" key=root"
	var out bytes.Buffer
	log := newLogger(&out, true, logs.Text)
	log.Info(evil, "MacNode", evil, "list", []string{evil}, "struct", struct{ Message string }{Message: evil})
	log.Error(errors.New(evil), "Reconcile", "reason", evil)
	log.V(1).WithName(evil).WithValues("source", evil).Info("seen", "map", map[string]string{evil: evil})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 3 {
		t.Errorf("%d lines for 3 records:\n%s", len(lines), out.String())
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "time=") || strings.Contains(strings.ReplaceAll(line, `\" key=root`, ""), " key=root") {
			t.Errorf("a forged line: %q", line)
		}
		if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' }); i >= 0 {
			t.Errorf("a control character in %q", line)
		}
	}
}

// TestAttackThePortsOfTheOperator: a stranger's headers without end are refused on the ports
// of probes and metrics, and its connections give way to newer ones.
func TestAttackThePortsOfTheOperator(t *testing.T) {
	s := settings{health: freeAddress(t), metrics: freeAddress(t)}
	config := &rest.Config{Host: "http://127.0.0.1:1"} // never asked
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := servePorts(mgr, config, s); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	for name, url := range map[string]string{s.health: "/healthz", s.metrics: "/metrics"} {
		eventually(t, "an answer", func() error { _, err := get("http://" + name + url); return err })
		var open atomic.Int64
		for range 100 {
			c, err := net.Dial("tcp", name)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			open.Add(1)
			go func() {
				_, _ = io.Copy(io.Discard, c)
				open.Add(-1)
			}()
		}
		eventually(t, "the oldest give way", func() error {
			if n := open.Load(); n > 16 {
				return fmt.Errorf("%d connections are open", n)
			}
			return nil
		})
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+name+url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Bomb", strings.Repeat("x", 64<<10))
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("64 KiB of headers: %s", resp.Status)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
