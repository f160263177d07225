package proxy_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/gateway/keys"
	"metalfleet.dev/metalfleet/gateway/route"
)

// facts of a model whose header was read.
var facts = route.Facts{Context: 8192, Trained: 40960, Task: model.Generate, Digest: "sha256:0a1b", Bytes: 5 << 30, Format: "gguf", Architecture: "qwen3", Quantization: "Q4_K"}

// known adds a deployment with one replica of those facts.
func (w *world) known(name string, f route.Facts) {
	w.deployment(name, name)
	w.table.SetReplica(route.Replica{UID: name, Epoch: 1, Deployment: route.Key{Namespace: "ns", Name: name}, DeploymentUID: name, Facts: f})
}

func TestModelsSayWhatIsKnownOfThem(t *testing.T) {
	w := newWorld(t)
	w.known("chat", facts)
	w.known("vectors", route.Facts{Context: 512, Task: model.Embed})
	w.known("scores", route.Facts{Task: model.Rerank})
	w.known("images", route.Facts{Task: model.Generate, Sees: true})
	w.known("caller", route.Facts{Task: model.Generate, Sees: true, Tools: true})
	w.deployment("new", "new")
	const meta = `"max_model_len":8192,"context_length":8192,"meta":{"n_ctx":8192,"n_ctx_train":40960,"size":5368709120},"capabilities":["completion"]}`
	for name, want := range map[string]string{
		"chat":    `{"id":"chat","object":"model","created":0,"owned_by":"ns",` + meta,
		"ns/chat": `{"id":"ns/chat","object":"model","created":0,"owned_by":"ns",` + meta,
		"vectors": `{"id":"vectors","object":"model","created":0,"owned_by":"ns","max_model_len":512,"context_length":512,"meta":{"n_ctx":512},"capabilities":["embedding"]}`,
		"images":  `{"id":"images","object":"model","created":0,"owned_by":"ns","capabilities":["completion","vision"]}`,
		"caller":  `{"id":"caller","object":"model","created":0,"owned_by":"ns","capabilities":["completion","tools","vision"]}`,
		"scores":  `{"id":"scores","object":"model","created":0,"owned_by":"ns","capabilities":["rerank"]}`,
		"new":     `{"id":"new","object":"model","created":0,"owned_by":"ns"}`, // nothing is invented
	} {
		if got := read(t, w.do("GET", "/v1/models/"+name, "")); got != want {
			t.Errorf("%s: %s", name, got)
		}
		if list := read(t, w.do("GET", "/v1/models", "")); !strings.Contains(name, "/") && !strings.Contains(list, want) {
			t.Errorf("%s is not in %s", name, list)
		}
	}
}

func TestClientsOfOllamaFindTheModels(t *testing.T) {
	w := newWorld(t)
	w.known("chat", facts)
	w.deployment("new", "new")
	if got := read(t, w.do("GET", "/api/version", "")); !strings.HasPrefix(got, `{"version":"0.`) {
		t.Errorf("version %s", got)
	}
	const details = `"details":{"format":"gguf","family":"qwen3","families":["qwen3"],"quantization_level":"Q4_K"}`
	want := `{"models":[{"name":"chat","model":"chat","modified_at":"1970-01-01T00:00:00Z","size":5368709120,"digest":"0a1b",` + details + `},` +
		`{"name":"new","model":"new","modified_at":"1970-01-01T00:00:00Z","details":{}}]}`
	if d := cmp.Diff(want, read(t, w.do("GET", "/api/tags", ""))); d != "" {
		t.Error(d)
	}
	want = `{"parameters":"num_ctx 8192",` + details + `,"model_info":{"general.architecture":"qwen3","qwen3.context_length":8192},"capabilities":["completion"],"modified_at":"1970-01-01T00:00:00Z"}`
	for _, body := range []string{`{"model":"chat","verbose":true}`, `{"name":"ns/chat"}`} {
		if d := cmp.Diff(want, read(t, w.do("POST", "/api/show", body))); d != "" {
			t.Errorf("%s: %s", body, d)
		}
	}
	if got := read(t, w.do("POST", "/api/show", `{"model":"new"}`)); got != `{"details":{},"model_info":{},"modified_at":"1970-01-01T00:00:00Z"}` {
		t.Errorf("of a model without replicas %s", got)
	}
	for body, status := range map[string]int{`{"model":"missing"}`: 404, `{}`: 400, `{"model":1}`: 400, `{"model"`: 400} {
		resp := w.do("POST", "/api/show", body)
		var e struct{ Error string }
		if err := json.Unmarshal([]byte(read(t, resp)), &e); err != nil || resp.StatusCode != status || e.Error == "" || resp.Header.Get(dialect.HeaderCode) == "" {
			t.Errorf("%s: %d %q %v", body, resp.StatusCode, e.Error, err)
		}
	}
	if resp := w.do("DELETE", "/api/show", ""); resp.StatusCode != 405 {
		t.Errorf("these routes only read: %d", resp.StatusCode)
	}
}

func TestKeysLimitWhatClientsOfOllamaFind(t *testing.T) {
	l := newLocked(t)
	l.known("mine", facts)
	l.known("theirs", facts)
	token := l.key("team", keys.Grant{Models: []string{"mine"}})
	if got := read(t, l.with(token, "GET", "/api/tags", "")); !strings.Contains(got, `"mine"`) || strings.Contains(got, "theirs") {
		t.Errorf("tags %s", got)
	}
	if resp := l.with(token, "POST", "/api/show", `{"model":"theirs"}`); resp.StatusCode != 404 {
		t.Errorf("%d", resp.StatusCode)
	}
}
