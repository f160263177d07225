package proxy_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/gateway/proxy"
)

// TestAMacThatEndsAtOnceAttractsFewMore, in ways that may seem to be the client's: of two Macs the
// other one, which answers, is sent some of the requests all the same.
func TestAMacThatEndsAtOnceAttractsFewMore(t *testing.T) {
	for name, ends := range map[string]http.HandlerFunc{
		"a status without a body": func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusNoContent) },
		"a stream without an end": events(untilGone, "x", "[DONE]"),
		"no stream after a keep-alive": func(rw http.ResponseWriter, r *http.Request) {
			time.Sleep(5 * time.Millisecond)
			say("{}")(rw, r)
		},
		"an error after a keep-alive": func(rw http.ResponseWriter, _ *http.Request) {
			time.Sleep(5 * time.Millisecond)
			rw.WriteHeader(http.StatusServiceUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *proxy.Config) { c.KeepAlive = time.Millisecond })
			honest := w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				time.Sleep(300 * time.Millisecond)
				events(nil, "x", "[DONE]")(rw, r)
			})
			w.addMac("b", ends)
			var clients sync.WaitGroup
			for range 200 {
				clients.Go(func() {
					resp, err := w.try(t.Context(), "POST", chatPath, `{"model":"m","messages":[],"stream":true}`)
					if err != nil {
						return // it broke off
					}
					defer resp.Body.Close()
					for lines := bufio.NewReader(resp.Body); ; {
						if line, err := lines.ReadString('\n'); err != nil || line == "data: [DONE]\n" {
							break // most clients leave there
						}
					}
				})
				time.Sleep(10 * time.Millisecond)
			}
			clients.Wait()
			if n := honest.requests.Load(); n < 20 {
				t.Errorf("the Mac that answers got %d of 200 requests", n)
			}
		})
	}
}

// TestAResponseWithoutABodyIsNotSent: no agent sends one, and clients would take it for an answer.
func TestAResponseWithoutABodyIsNotSent(t *testing.T) {
	for _, status := range []int{http.StatusCreated, http.StatusNoContent, http.StatusFound, http.StatusNotModified} {
		w := newWorld(t)
		w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(status) })
		for range 2 {
			resp := w.chat()
			if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), "not valid") {
				t.Errorf("a Mac's status %d: %s, %.200s", status, resp.Status, text)
			}
		}
	}
}
