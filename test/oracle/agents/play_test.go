package agents

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheRepositorysTestIsGreenOnceTheProgramMultiplies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shop")
	if err := writeRepository(dir); err != nil {
		t.Fatal(err)
	}
	if err := testRepository(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "FAIL") {
		t.Fatalf("before: %v", err)
	}
	// Changing the test in place of the program must not help.
	if err := os.WriteFile(filepath.Join(dir, "test.sh"), []byte("exit 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if testRepository(t.Context(), dir) == nil {
		t.Fatal("a changed test is green")
	}
	fixed := strings.Replace(priceProgram, "+", "*", 1)
	if err := os.WriteFile(filepath.Join(dir, "price.sh"), []byte(fixed), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := testRepository(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
}

func TestTheRecorderPassesStreamsOnAndKeepsThem(t *testing.T) {
	left := make(chan struct{})
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Metalfleet-Ignored", "store, metadata")
		_, _ = io.WriteString(w, string(body)+` "delta" "delta"`)
		if r.URL.Path == "/endless" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(left)
		}
	}))
	defer gateway.Close()
	r, err := record(gateway.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	post(t, ctx, r.URL+"/whole")
	reading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); post(t, reading, r.URL+"/endless") }()
	if err := r.waitPieces(ctx, 1, "/endless", 2); err != nil {
		t.Fatal(err)
	}
	stop()
	<-ended
	<-left
	if err := r.waitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	all := r.exchanges(0)
	if len(all) != 2 || !all[0].Ended || all[1].Ended {
		t.Fatalf("%+v", all)
	}
	for _, e := range all {
		if e.Status != 200 || string(e.Request) != "question" || string(e.Response) != `question "delta" "delta"` || strings.Join(e.Ignored, " ") != "store metadata" {
			t.Errorf("%s %s: %d, %q, %q, %v", e.Method, e.Path, e.Status, e.Request, e.Response, e.Ignored)
		}
	}
}

// A program that leaves, as one does that is interrupted, was not refused by the
// gateway; one that finds no gateway was.
func TestTheRecorderKnowsAProgramThatLeavesFromAGatewayThatIsAway(t *testing.T) {
	asked := make(chan struct{})
	gateway := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(asked)
		<-r.Context().Done()
	}))
	defer gateway.Close()
	r, err := record(gateway.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waiting, leave := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); post(t, waiting, r.URL+"/v1/responses") }()
	<-asked
	leave()
	<-ended
	if err := r.waitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := inspect(r.exchanges(0)); err != nil {
		t.Error(err)
	}
	gateway.Close()
	post(t, ctx, r.URL+"/v1/responses")
	if _, err := inspect(r.exchanges(1)); err == nil || !strings.Contains(err.Error(), "connect") {
		t.Errorf("without a gateway: %v", err)
	}
}

// post asks and reads the answer until it or ctx ends.
func post(t *testing.T, ctx context.Context, url string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("question"))
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}
