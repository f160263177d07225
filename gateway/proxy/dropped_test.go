package proxy_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/gateway/proxy"
)

// from sends a body from another address of this machine.
func (w *world) from(address, body string) *http.Response { return w.fromTo(address, chatPath, body) }

func (w *world) fromTo(address, path, body string) *http.Response {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.DialContext}}
	r, err := http.NewRequestWithContext(w.t.Context(), "POST", w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Error(err)
		return nil
	}
	resp, err := c.Do(r)
	if err != nil {
		w.t.Error(err)
		return nil
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestABodyThatWasSentGivesWay to one of a client with less, while its Mac computes: then no other replica
// is tried, and nothing else is lost.
func TestABodyThatWasSentGivesWay(t *testing.T) {
	const large, small = 600 << 10, 150 << 10
	body := func(size int) string {
		return chatBody[:len(chatBody)-1] + `,"x":"` + strings.Repeat("x", size) + `"}`
	}
	for name, c := range map[string]struct {
		fails  bool
		status int
	}{"the Mac answers": {status: http.StatusOK}, "the Mac fails": {fails: true, status: http.StatusServiceUnavailable}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *proxy.Config) { c.MaxHeldBytes = 8 << 20 })
			asked, end := make(chan struct{}, 2), make(chan struct{})
			w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
				if r.ContentLength > large {
					asked <- struct{}{}
					<-end
					if c.fails {
						abort(r)
					}
				}
				_, _ = io.WriteString(rw, `"answer"`)
			})
			ended := make(chan *http.Response, 1)
			go func() { ended <- w.from("127.0.0.2", body(large)) }()
			select {
			case <-asked:
			case r := <-ended:
				t.Fatal(r.Status, read(t, r))
			}
			before := w.proxy.Bodies().Held()
			stay, err := w.proxy.Bodies().Hold("a third", 5<<20-200<<10)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "a client with less is served", func() bool {
				return w.from("127.0.0.3", body(small)).StatusCode == http.StatusOK
			})
			stay.Release()
			if held := w.proxy.Bodies().Held(); before < large || held > 0 {
				t.Errorf("%d bytes counted for a body of %d, and %d after it gave way", before, large, held)
			}
			close(end)
			if r := <-ended; r.StatusCode != c.status {
				t.Errorf("status %d, want %d", r.StatusCode, c.status)
			}
			if n := len(asked); n > 0 {
				t.Error("a body that gave way was sent again")
			}
		})
	}
}
