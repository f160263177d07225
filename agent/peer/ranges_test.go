package peer

import (
	"fmt"
	"net/http"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestOneRangeOfWeightsIsServed: peers continue a copy with one range. A header has room for
// thousands, and each is a part of its own.
func TestOneRangeOfWeightsIsServed(t *testing.T) {
	s := newStand(t, nil)
	url := fmt.Sprintf("https://%s:%d%s", s.addr.Host, s.addr.Port, agentapi.WeightsPath(digest, sum))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: agentapi.WeightsClientTLS(s.ca.Mac("asker").Pair(t), s.ca.Roots(), "giver")}}
	for ranges, want := range map[string]int{
		"bytes=1-":        http.StatusPartialContent,
		"bytes=0-0,2-2":   http.StatusRequestedRangeNotSatisfiable,
		"bytes=0-0, ,2-2": http.StatusRequestedRangeNotSatisfiable,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(agentapi.HeaderGrant, s.grant(nil))
		req.Header.Set("Range", ranges)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: HTTP %d, want %d", ranges, resp.StatusCode, want)
		}
	}
}
