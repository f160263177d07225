package serve_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/metal/wire"
)

// withImage are requests of every dialect with a text, an image at a URL, and a text.
func withImage(url string) map[string]string {
	source := `{"type":"url","url":"` + url + `"}`
	if data, ok := strings.CutPrefix(url, "data:image/png;base64,"); ok {
		source = `{"type":"base64","media_type":"image/png","data":"` + data + `"}`
	}
	return map[string]string{
		dialect.PathChat:        `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"` + url + `"}},{"type":"text","text":"b"}]}]}`,
		dialect.PathResponses:   `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"` + url + `"},{"type":"input_text","text":"b"}]}]}`,
		dialect.PathMessages:    `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","source":` + source + `},{"type":"text","text":"b"}]}]}`,
		dialect.PathInputTokens: `{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"` + url + `"},{"type":"input_text","text":"b"}]}]}`,
		dialect.PathCountTokens: `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","source":` + source + `},{"type":"text","text":"b"}]}]}`,
	}
}

func TestImagesOfEveryDialectReachTheEngineAsBytes(t *testing.T) {
	image := func(b string) *wire.ContentPart {
		return &wire.ContentPart{Part: &wire.ContentPart_Image{Image: []byte(b)}}
	}
	text := func(s string) *wire.ContentPart {
		return &wire.ContentPart{Part: &wire.ContentPart_Text{Text: s}}
	}
	var most int64
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("x"), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)), func(c *serve.Config) {
		c.FetchImage = func(_ context.Context, url string, n int64) ([]byte, error) {
			most = n
			if url != "https://images.example/a.png" {
				return nil, errors.New("host other.example is not allowed here")
			}
			return []byte("fetched"), nil
		}
	})
	for url, want := range map[string]string{"data:image/png;base64,aGVsbG8h": "hello!", "https://images.example/a.png": "fetched"} {
		for path, body := range withImage(url) {
			resp := p.do("POST", path, body)
			if got := read(t, resp); resp.StatusCode != 200 {
				t.Errorf("%s: %s", path, got)
				continue
			}
			messages := (<-p.seen).GetChat().GetMessages()
			if d := cmp.Diff([]*wire.ChatMessage{{Role: "user", Parts: []*wire.ContentPart{text("a"), image(want), text("b")}}}, messages, protocmp.Transform()); d != "" {
				t.Errorf("%s: %s", path, d)
			}
		}
	}
	if most < 1<<20 || most > 64<<20 {
		t.Errorf("an image may have %d bytes", most)
	}
	for path, body := range withImage("https://other.example/a.png") {
		resp := p.do("POST", path, body)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, "other.example is not allowed") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}

func TestNoImageIsFetchedUnlessAllowed(t *testing.T) {
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)))
	for path, body := range withImage("https://images.example/a.png") {
		resp := p.do("POST", path, body)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, "does not fetch images") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}
