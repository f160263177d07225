package proxy_test

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/responses"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestMacsThatDoNotAnswerHideNoResponse: a search spends its time on them once at most.
func TestMacsThatDoNotAnswerHideNoResponse(t *testing.T) {
	for name, tc := range map[string]struct {
		open     bool
		statuses []int
	}{
		"known to be offline": {open: false, statuses: []int{200}},
		"just lost":           {open: true, statuses: []int{503, 200, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			kept := responses.NewAnywhere()
			proof := kept.Proof()
			w.addMac("mac-z", func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set(agentapi.HeaderResponseProof, proof)
				say("stored")(rw, r)
			})
			for i := range 20 { // more than are asked at once
				dark, err := net.Listen("tcp", "127.0.0.1:0") // which takes connections, and sends nothing
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = dark.Close() })
				w.table.SetMac(route.Mac{Name: fmt.Sprintf("mac-%02d", i), Address: dark.Addr().String(), Open: tc.open})
			}
			for i, want := range tc.statuses {
				resp := w.do("GET", dialect.PathResponses+"/"+kept.ID(), "")
				if got := read(t, resp); resp.StatusCode != want || want == http.StatusOK && got != "stored" {
					t.Errorf("search %d: %d %s, want %d", i, resp.StatusCode, got, want)
				}
			}
		})
	}
}

// TestASlowMacDoesNotKeepSearchesFromOthers: it takes part of the time of each search, and no place of others.
func TestASlowMacDoesNotKeepSearchesFromOthers(t *testing.T) {
	w := newWorld(t)
	kept := responses.NewAnywhere()
	proof := kept.Proof()
	w.addMac("a", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(agentapi.HeaderResponseProof, proof)
		say("stored")(rw, r)
	})
	var mu sync.Mutex
	asked, most := 0, 0
	w.addMac("slow", func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked++
		most = max(most, asked)
		mu.Unlock()
		untilGone(r)
		mu.Lock()
		asked--
		mu.Unlock()
		rw.WriteHeader(http.StatusNotFound)
	})
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if resp := w.do("GET", dialect.PathResponses+"/"+kept.ID(), ""); resp.StatusCode != http.StatusOK {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	all.Wait()
	if most < 4 {
		t.Errorf("%d searches waited for the slow Mac at once", most)
	}
}
