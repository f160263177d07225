package dialect

import (
	"net/http"
	"testing"
)

func TestPathsThatMeanTheSameRoute(t *testing.T) {
	for want, paths := range map[string][]string{
		PathModels:            {"/v1/models", "/v1/models/", "//v1/models", "/v1//models", "/v1///models//", "/models", "/models/", "/v1/v1/models"},
		PathModels + "/m":     {"/v1/models/m", "/v1/models/m/", "/v1/models//m", "/models/m", "/v1/v1/models/m"},
		PathModels + "/ns/m":  {"/v1/models/ns/m", "/models/ns/m/"},
		PathModels + "/v1":    {"/v1/models/v1", "/models/v1"},
		PathChat:              {"/v1/chat/completions", "/v1/chat/completions/", "/chat/completions", "//chat/completions", "/v1/v1/chat/completions"},
		PathCompletions:       {"/completions", "/v1/completions/"},
		PathEmbeddings:        {"/embeddings", "/v1/embeddings/"},
		PathRerank:            {"/rerank", "/v1/rerank/", "/v1/v1/rerank"},
		PathRerankV2:          {"/v2/rerank", "/v2/rerank/", "/v1/v2/rerank"},
		PathScore:             {"/score", "/v1/score", "/score/"},
		PathMessages:          {"/messages", "/v1/v1/messages", "/v1/messages/"},
		PathCountTokens:       {"/messages/count_tokens", "/v1/v1/messages/count_tokens"},
		PathResponses:         {"/responses", "/v1/responses/", "/v1/v1/responses"},
		PathResponses + "/r":  {"/responses/r", "/v1//responses/r/"},
		PathRoot:              {"/", "//", "/v1", "/v1/"},
		PathHealth:            {"/health", "/health/", "/v1/health"},
		PathTags:              {"/api/tags", "/api/tags/", "/v1/api/tags"},
		PathShow:              {"/api/show", "//api/show"},
		PathVersion:           {"/api/version"},
		"/v1/messages/batche": {"/messages/batche"}, // no route, but its API's error format
	} {
		for _, path := range paths {
			if got := Canonical(path); got != want {
				t.Errorf("%q is %q, want %q", path, got, want)
			}
		}
	}
}

func TestPathsOfNoRouteStayAsTheyAre(t *testing.T) {
	for _, path := range []string{"", "*", "/v1/nothing", "/nothing/", "/v2/models", "/v1beta/models", "/v1models", "/mounted/v1/models",
		"/v1/modelsx", "/v1/chat", "/v1/rerank/x", "/v2/v1/models", "/api/chat", "/metalfleet/v1/health", "/v1/../v1/models"} {
		if got := Canonical(path); got != path {
			t.Errorf("%q becomes %q", path, got)
		}
	}
}

// The caller's request is not changed.
func TestCanonicalRequestIsACopyWhereThePathDiffers(t *testing.T) {
	r, err := http.NewRequest(http.MethodGet, "http://g//v1/models/?limit=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := CanonicalRequest(r)
	if got.URL.RequestURI() != "/v1/models?limit=1" || r.URL.Path != "//v1/models/" {
		t.Errorf("%s of %s", got.URL.RequestURI(), r.URL.Path)
	}
	if again := CanonicalRequest(got); again != got {
		t.Error("a canonical path is copied")
	}
}

// Ordinary requests cost nothing.
func TestCanonicalPathsAreNotCopied(t *testing.T) {
	for _, path := range []string{PathChat, PathMessages, PathResponses} {
		if n := testing.AllocsPerRun(100, func() { Canonical(path) }); n != 0 {
			t.Errorf("%s: %v allocations", path, n)
		}
	}
}
