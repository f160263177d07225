package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/proxy"
	"metalfleet.dev/metalfleet/test/patience"
)

// TestALongEventIsNoFailureOfAMac: the events of a response repeat what its request says, and
// another Mac would send the same.
func TestALongEventIsNoFailureOfAMac(t *testing.T) {
	long := "event: response.created\ndata: " + strings.Repeat("u", 8<<20) + "\n\n"
	for name, begin := range map[string]string{"the first event": "", "a later event": "event: response.output_text.delta\ndata: {}\n\n"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *proxy.Config) {
				c.Waiting = fairqueue.Limits{Count: 10, Bytes: 1 << 20, Age: patience.Of(t)}
			})
			var macs []*mac
			for _, of := range []string{"a", "b", "c"} {
				macs = append(macs, w.addMac(of, func(rw http.ResponseWriter, _ *http.Request) {
					rw.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(rw, begin+long)
				}))
			}
			const requests = 6 // one more than the failures in a row after which a replica is avoided
			for range requests {
				got := read(t, w.do("POST", dialect.PathResponses, `{"model":"m","input":"x","stream":true}`))
				if !strings.Contains(got, "event_too_long") {
					t.Fatalf("%.300s", got)
				}
			}
			sent := int64(0)
			for _, m := range macs {
				sent += m.requests.Load()
			}
			if avoided := w.counter("replicas_ejected_total") + w.counter("macs_suspected_total"); sent != requests || avoided > 0 {
				t.Errorf("%d requests were sent %d times, and %v replicas and Macs are avoided", requests, sent, avoided)
			}
		})
	}
}

// TestAMethodOfAClientIsNoFailureOfAMac: no Mac accepts a long one, and a client may name any Mac.
func TestAMethodOfAClientIsNoFailureOfAMac(t *testing.T) {
	w := newWorld(t)
	m := w.addMac("a", say(`{}`))
	m.server.Config.MaxHeaderBytes = agentapi.MaxHeaderBytes
	read(t, w.chat()) // the gateway knows the limit from the connection
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := dialect.PathResponses + "/" + responses.NewID("a") + "/" + strings.Repeat("x", 3900)
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("M", 64000), path); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := read(t, resp); resp.StatusCode != http.StatusMethodNotAllowed || w.counter("macs_suspected_total") > 0 {
		t.Errorf("%s: %.300s; %v Macs are avoided", resp.Status, text, w.counter("macs_suspected_total"))
	}
}

// lateClient accepts its first write late, when the Mac has given up.
type lateClient struct {
	slowClient
	begun chan struct{}
}

func (c *lateClient) Write(p []byte) (int, error) {
	if c.writes > 0 {
		return c.ResponseRecorder.Write(p)
	}
	c.begun <- struct{}{}
	time.Sleep(450 * time.Millisecond) // with the rest half of a write's time
	return c.slowClient.Write(p)
}

// TestAClientsDelayIsNoFailureOfAMac that waits for it for no longer.
func TestAClientsDelayIsNoFailureOfAMac(t *testing.T) {
	w := newWorld(t, func(c *proxy.Config) { c.WriteTimeout = time.Second })
	begun := make(chan struct{})
	for _, of := range []string{"a", "b"} {
		w.addMac(of, func(rw http.ResponseWriter, _ *http.Request) {
			_ = openai.NewEventWriter(rw).Send("x")
			<-begun
			panic(http.ErrAbortHandler) // as after the deadline of a write
		})
	}
	const requests = 12 // of which one of two Macs serves more than the failures in a row after which it is avoided
	for range requests {
		c := &lateClient{slowClient{ResponseRecorder: httptest.NewRecorder()}, begun}
		w.proxy.ServeHTTP(c, httptest.NewRequestWithContext(t.Context(), "POST", chatPath, strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}`)))
		if got := c.Body.String(); !strings.Contains(got, agentapi.CodeEngineLost) {
			t.Fatalf("%.300s", got)
		}
	}
	if avoided := w.counter("replicas_ejected_total") + w.counter("macs_suspected_total"); avoided > 0 {
		t.Errorf("%v replicas and Macs are avoided", avoided)
	}
}

// TestHeadsOfAMacsResponsesAreShort: the gateway keeps one for as long as the response runs.
func TestHeadsOfAMacsResponsesAreShort(t *testing.T) {
	w := newWorld(t)
	fields := 0
	w.addMac("a", func(rw http.ResponseWriter, _ *http.Request) {
		for i := range fields {
			rw.Header()[fmt.Sprint("X", i)] = []string{""}
		}
		_, _ = io.WriteString(rw, "{}")
	})
	for of, served := range map[int]bool{100: true, 1000: false} {
		fields = of
		if resp := w.chat(); (resp.StatusCode == http.StatusOK) != served {
			t.Errorf("%d fields: %s", of, resp.Status)
		}
	}
}
