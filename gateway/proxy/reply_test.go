package proxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/gateway/route"
)

// A length of a Mac that clients could read in two ways does not reach them.
func TestAttackTwoLengthsOfAMac(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), route.NewTable())
	for _, c := range []struct{ sent, want []string }{
		{[]string{"2"}, []string{"2"}}, {[]string{"0"}, []string{"0"}}, {sent: []string{"2", "7"}}, {sent: []string{"2", "2"}},
		{sent: []string{"+2"}}, {sent: []string{"02"}}, {sent: []string{"2,2"}}, {sent: []string{" 2"}}, {sent: []string{""}}, {sent: []string{"-1"}},
	} {
		out := httptest.NewRecorder()
		w := newReply(out, time.Second, dialect.Of(dialect.PathChat), m)
		w.begin(&http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Length": c.sent, "Content-Type": {"application/json"}}}, "a")
		if got := out.Header()["Content-Length"]; !slices.Equal(got, c.want) || out.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%q becomes %q: %v", c.sent, got, out.Header())
		}
	}
}
