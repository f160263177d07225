package serve_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/serve/servetest"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
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
	p := newPort(t, servetest.Events(servetest.Admit(), servetest.Text("x"), servetest.Finish(wire.FinishReason_FINISH_REASON_STOP, 1)), func(c *serve.Config) {
		c.FetchImage = func(_ context.Context, url string) (io.ReadCloser, int64, error) {
			if url != "https://images.example/a.png" {
				return nil, 0, errors.New("host other.example is not allowed here")
			}
			return io.NopCloser(strings.NewReader("fetched")), -1, nil
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
	for path, body := range withImage("https://other.example/a.png") {
		resp := p.do("POST", path, body)
		if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, "other.example is not allowed") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}

// An image that the engine cannot use is the client's error in the form of each dialect, which
// names the image and what is wrong with it.
func TestImagesThatTheEngineRefusesAreErrorsOfEveryDialect(t *testing.T) {
	for _, message := range []string{
		"image 1 cannot be used: the image is too large: 20000 x 2 pixels, want at most 16384 on each side",
		"image 2 cannot be used: not an image in a supported format (PNG, JPEG, WebP, GIF)",
		"this model does not support image input; remove the images, or choose a model with vision",
	} {
		p := newPort(t, servetest.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Message: message, Param: "messages"}))
		for path, body := range withImage("data:image/png;base64,aGVsbG8h") {
			var got struct {
				Type  string
				Error struct{ Type, Message, Param string }
			}
			resp := p.do("POST", path, body)
			text := read(t, resp)
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Errorf("%s: %s: %v", path, text, err)
			}
			anthropic := path == dialect.PathMessages || path == dialect.PathCountTokens
			if resp.StatusCode != 400 || got.Error.Type != "invalid_request_error" || got.Error.Message != message || (got.Type == "error") != anthropic {
				t.Errorf("%s: %d %s", path, resp.StatusCode, text)
			}
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

func TestAnImageAtAURLIsNoLargerThanARequest(t *testing.T) {
	p := newPort(t, servetest.Say("hi"), func(c *serve.Config) {
		c.MaxBodyBytes = 1000
		c.FetchImage = func(context.Context, string) (io.ReadCloser, int64, error) {
			return io.NopCloser(strings.NewReader(strings.Repeat("x", 1001))), -1, nil
		}
	})
	resp := p.do("POST", dialect.PathChat, withImage("https://images.example/a.png")[dialect.PathChat])
	if got := read(t, resp); resp.StatusCode != 400 || !strings.Contains(got, "more than 1000 bytes") {
		t.Errorf("%d %s", resp.StatusCode, got)
	}
}

// heldBack is an image whose end comes when all is closed.
type heldBack struct {
	left int
	all  <-chan struct{}
	ctx  context.Context
}

func (h *heldBack) Read(p []byte) (int, error) {
	if h.left == 0 {
		select {
		case <-h.all:
			return 0, io.EOF
		case <-h.ctx.Done():
			return 0, h.ctx.Err()
		}
	}
	n := min(len(p), h.left)
	h.left -= n
	return n, nil
}

func (*heldBack) Close() error { return nil }

// Small requests that name large images make an agent hold no more than its bound for
// request bodies, and another tenant's request is served meanwhile.
func TestAttackFetchedImagesCountAsBodies(t *testing.T) {
	const size, requests, bound = 1 << 20, 24, 8 << 20
	all, statuses := make(chan struct{}), make(chan int, requests)
	p := newPort(t, servetest.Say("hi"), func(c *serve.Config) {
		c.BodiesBytes = bound
		c.FetchImage = func(ctx context.Context, _ string) (io.ReadCloser, int64, error) {
			return &heldBack{left: size, all: all, ctx: ctx}, -1, nil
		}
	})
	body := withImage("https://images.example/a.png")[dialect.PathChat]
	for range requests {
		go func() {
			statuses <- p.do("POST", dialect.PathChat, body, agentapi.HeaderTenant, "tenant/a").StatusCode
		}()
	}
	for range requests - bound/size { // for as many at least there is no room
		select {
		case status := <-statuses:
			if status != http.StatusServiceUnavailable {
				t.Errorf("status %d while all memory is used", status)
			}
		case <-time.After(patience.Most):
			t.Fatal("too few requests were refused while others use all memory")
		}
	}
	if resp := p.do("POST", dialect.PathCompletions, `{"model":"m","prompt":"x"}`, agentapi.HeaderTenant, "tenant/b"); resp.StatusCode != http.StatusOK {
		t.Errorf("another tenant: %s", resp.Status)
	}
	close(all)
	for range bound / size {
		<-statuses
	}
	if resp := p.do("POST", dialect.PathChat, body, agentapi.HeaderTenant, "tenant/a"); resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %s", resp.Status)
	}
}
