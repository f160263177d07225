package tunnel_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/tunnel"
)

// logged is what a hub logged.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) add(_, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

// take returns the lines since the last call.
func (l *logged) take() (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, l.lines = l.lines, nil
	return lines
}

// TestAMacThatOpensTunnelsAgainAndAgainDoesNotFillTheLog: those of other Macs are logged, and its own
// again after a minute, with the number of lines that are missing.
func TestAMacThatOpensTunnelsAgainAndAgainDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}, &logged{}
		w := &world{t: t, ca: agentapitest.NewCA(t)}
		w.ids.Set(w.identity(w.ca.Gateway()))
		hub := tunnel.New(tunnel.Options{UID: func(mac string) (string, bool) { return agentapitest.UID(mac), true },
			Identity: w.ids.Current, Log: funcr.New(log.add, funcr.Options{})})
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- hub.Serve(ctx, l) }()
		open := func(mac string, times int) []string {
			for range times {
				raw := l.dial()
				if err := agentapi.SayTunnel(raw, mac); err != nil {
					t.Fatal(err)
				}
				if _, err := agentapi.HearGateway(raw); err != nil {
					t.Fatal(err)
				}
				s, _ := w.serveOn(agentapi.Tunnel(raw), w.ca.MacOfUID(mac, agentapitest.UID(mac)), func(http.ResponseWriter, *http.Request) {})
				synctest.Wait()
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			return log.take()
		}
		if n := len(open("a", 20)); n != 10 {
			t.Errorf("20 tunnels of a Mac in a minute have %d lines, want 10", n)
		}
		if n := len(open("b", 1)); n != 2 {
			t.Errorf("one of another Mac has %d lines, want 2", n)
		}
		open("a", 10)
		time.Sleep(time.Minute)
		if lines := open("a", 1); len(lines) != 2 || !strings.Contains(lines[0], `"dropped"=20`) {
			t.Errorf("one of it after a minute: %q", lines)
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
