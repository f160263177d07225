//go:build !race

package serve_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/dialect"
)

// TestImagesCountAsTheyAreHeld: an item of /v1/responses keeps its image as a URL too, also until an
// engine has admitted the request.
func TestImagesCountAsTheyAreHeld(t *testing.T) {
	const bytes = 3 << 20
	data, fetched := "data:image/png;base64,"+strings.Repeat("AAAA", bytes/3), "https://images.example/a.png"
	for name, tc := range map[string]struct {
		path, url string
		memory    int64
		want      int
	}{
		"in a chat":              {path: dialect.PathChat, url: data, memory: 10 << 20, want: http.StatusOK},
		"in messages":            {path: dialect.PathMessages, url: data, memory: 10 << 20, want: http.StatusOK},
		"in items":               {path: dialect.PathResponses, url: data, memory: 20 << 20, want: http.StatusOK},
		"in items that are more": {path: dialect.PathResponses, url: data, memory: 10 << 20, want: http.StatusServiceUnavailable},
		"at a URL, in a chat":    {path: dialect.PathChat, url: fetched, memory: 10 << 20, want: http.StatusOK},
		"at a URL, in items":     {path: dialect.PathResponses, url: fetched, memory: 20 << 20, want: http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(t, servetest.Say("x"), func(c *serve.Config) {
				c.BodiesBytes = tc.memory
				c.FetchImage = func(context.Context, string) (io.ReadCloser, int64, error) {
					return io.NopCloser(strings.NewReader(strings.Repeat("x", bytes))), bytes, nil
				}
			})
			for range 2 { // what the first one held is free again
				resp := p.do("POST", tc.path, withImage(tc.url)[tc.path])
				if text := read(t, resp); resp.StatusCode != tc.want {
					t.Errorf("%s: %.300s", resp.Status, text)
				}
			}
		})
	}
}
