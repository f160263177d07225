package proxy

import (
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// TestWhatStaysOfTheHeaderOfAMac: a stolen Mac fills 16 KiB with fields, or with the names of
// trailers, which stay for as long as its response runs.
func TestWhatStaysOfTheHeaderOfAMac(t *testing.T) {
	const responses = 100
	for name, response := range map[string]func() *http.Response{
		"fields": func() *http.Response {
			h, values := http.Header{}, make([]string, 512) // as net/http makes them
			for i := range 480 {
				h[fmt.Sprintf("A%02x", i)] = values[i : i+1 : i+1]
			}
			values[481] = "text/event-stream"
			h["Content-Type"] = values[481:482:482]
			return &http.Response{Header: h}
		},
		"trailers": func() *http.Response {
			names := http.Header{}
			for i := range 5000 {
				names[fmt.Sprintf("%02x", i)] = nil
			}
			return &http.Response{Header: http.Header{"Content-Type": {"text/event-stream"}, "Trailer": {strings.Repeat("00,", 5000)}}, Trailer: names}
		},
	} {
		var all []*http.Response
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range responses {
			all = append(all, trimmed(response()))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if kept := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / responses; kept > 4<<10 {
			t.Errorf("of %s %d bytes stay for each response", name, kept)
		}
		if got := all[0].Header; len(got) != 1 || got.Get("Content-Type") != "text/event-stream" {
			t.Errorf("of %s %d stay, with the type %s", name, len(got), got.Get("Content-Type"))
		}
		runtime.KeepAlive(all)
	}
	used := http.Header{agentapi.HeaderTokens: {"1+2"}, agentapi.HeaderRetryable: {"true"}, "Retry-After": {"1"}, agentapi.HeaderIgnored: {"a", "b"}}
	if got := trimmed(&http.Response{Header: used}).Header; !maps.EqualFunc(got, used, slices.Equal) {
		t.Errorf("what the gateway reads becomes %v", got)
	}
}
