package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/route"
)

// clock is a client that records when it received something.
type clock struct {
	header http.Header
	began  time.Time
	at     []time.Duration // of each write
	text   []string
}

func newClock() *clock { return &clock{header: http.Header{}, began: time.Now()} }

func (c *clock) Header() http.Header { return c.header }
func (c *clock) WriteHeader(int)     {}
func (c *clock) Write(p []byte) (int, error) {
	c.at, c.text = append(c.at, time.Since(c.began)), append(c.text, string(p))
	return len(p), nil
}
func (c *clock) FlushError() error                { return nil }
func (c *clock) SetWriteDeadline(time.Time) error { return nil }
func (c *clock) SetReadDeadline(time.Time) error  { return nil }

// longest returns the longest time without an event that clients parse, until end.
func (c *clock) longest(end time.Duration) time.Duration {
	last, longest := time.Duration(0), time.Duration(0)
	for i, text := range c.text {
		if strings.Contains(text, "\ndata: ") {
			longest = max(longest, c.at[i]-last)
			last = c.at[i]
		}
	}
	return max(longest, end-last)
}

// A client with an idle timer of 300 s over parsed events survives 400 s in the
// queue and 400 s in which its replica loads the model.
func TestClientsWithAnIdleTimerSurviveQueueAndLoad(t *testing.T) {
	const long = 400 * time.Second
	for path, body := range map[string]string{
		dialect.PathChat:        `{"model":"m","stream":true,"messages":[]}`,
		dialect.PathCompletions: `{"model":"m","stream":true,"prompt":"hi"}`,
		dialect.PathMessages:    `{"model":"m","stream":true,"max_tokens":1,"messages":[]}`,
		dialect.PathResponses:   `{"model":"m","stream":true,"input":"hi"}`,
	} {
		t.Run("queue"+path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := route.NewTable()
				table.MarkSynced()
				table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "m"}, UID: "m", Names: "m"})
				table.MarkSynced()
				p := New(Config{Table: table, Identity: func() *identity.Identity { return &identity.Identity{} }, Registry: prometheus.NewRegistry(),
					Log: logr.Discard(), Waiting: fairqueue.Limits{Count: 1, Bytes: 1 << 20, Age: long}})
				r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
				c := newClock()
				p.ServeHTTP(c, r)
				if got := c.longest(long); got > 10*time.Second || c.at[len(c.at)-1] != long {
					t.Errorf("%s without an event, in %s: %q", got, c.at[len(c.at)-1], c.text)
				}
				if c.header.Get(agentapi.HeaderQueuePosition) != "1" {
					t.Errorf("headers %v", c.header)
				}
			})
		})
		t.Run("load"+path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClock()
				w := newReply(c, time.Second, dialect.Of(path), newMetrics(prometheus.NewRegistry(), route.NewTable()))
				w.keepAlives = newKeepAlives(path, "m", []byte(body), freely, atOnce)
				_, cancel := context.WithCancelCause(t.Context())
				s := w.keepOpen(t.Context(), agentapi.KeepAlive, cancel)
				time.Sleep(long)
				if err := s.end(); err != nil {
					t.Fatal(err)
				}
				if got := c.longest(long); got > 10*time.Second {
					t.Errorf("%s without an event: %q", got, c.text)
				}
			})
		})
	}
}
