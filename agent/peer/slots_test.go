package peer

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// large is one file for any digest.
type large struct{ path string }

func (l large) Give(string, string, string, string) (*os.File, error) { return os.Open(l.path) }

// TestAttackAMacThatTakesEverySlot: its copies leave one slot for other Macs, and those
// that ask before a copy learn that there is none.
func TestAttackAMacThatTakesEverySlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	s := newStand(t, func(c *ServerConfig) { c.AtOnce, c.Weights = GivesAtOnce, large{path} })
	url := fmt.Sprintf("https://%s:%d%s", s.addr.Host, s.addr.Port, agentapi.WeightsPath(digest, sum))
	ask := func(mac, method string) int {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: agentapi.WeightsClientTLS(s.ca.Mac(mac).Pair(t), s.ca.Roots(), "giver")}}
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(agentapi.HeaderGrant, s.grant(func(g *agentapi.Grant) { g.Client = mac }))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() }) // it is not read
		return resp.StatusCode
	}
	for i, tc := range []struct {
		mac, method string
		want        int
	}{
		{mac: "asker", method: http.MethodGet, want: http.StatusOK},
		{mac: "asker", method: http.MethodHead, want: http.StatusServiceUnavailable},
		{mac: "asker", method: http.MethodGet, want: http.StatusServiceUnavailable},
		{mac: "other", method: http.MethodHead, want: http.StatusOK},
		{mac: "other", method: http.MethodGet, want: http.StatusOK},
		{mac: "third", method: http.MethodHead, want: http.StatusServiceUnavailable},
	} {
		if got := ask(tc.mac, tc.method); got != tc.want {
			t.Errorf("%d: %s of %s: HTTP %d, want %d", i, tc.method, tc.mac, got, tc.want)
		}
	}
}
