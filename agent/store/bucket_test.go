package store

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/s3/s3test"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// inBucket is a folder in a private bucket, and its record without the server's
// address.
func inBucket() (*s3test.Server, model.Record) {
	rec := model.Record{Format: model.FormatSafetensors}
	objects := map[string]s3test.Object{}
	for _, f := range []struct {
		name    string
		content []byte
	}{{"config.json", []byte(`{"a":1}`)}, {"model-00001-of-2.safetensors", blob(300 << 10)}, {"model-00002-of-2.safetensors", blob(200 << 10)}} {
		objects["a folder/m+1/"+f.name] = s3test.Object{Content: f.content}
		rec.Files = append(rec.Files, model.File{Path: f.name, Bytes: int64(len(f.content)), SHA256: digest(f.content)})
	}
	rec.Digest = model.DigestOf(rec.Files)
	stand := &s3test.Server{}
	stand.Put("models", s3test.Bucket{Objects: objects, Region: "us-east-1", ID: "AKIA", Secret: "secret"})
	return stand, rec
}

// TestAFolderOfABucketIsFetchedWhole over an interrupted connection, with signed
// requests for the missing bytes.
func TestAFolderOfABucketIsFetchedWhole(t *testing.T) {
	stand, rec := inBucket()
	var cut atomic.Int64
	s := overHub(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "00001-of-2.safetensors") && cut.Add(1) == 1 {
			w = &cutting{ResponseWriter: w, left: 100 << 10}
		}
		stand.ServeHTTP(w, r)
	}))
	rec.Source = "s3://models/a%20folder/m%2B1?endpoint=" + url.QueryEscape(s.opt.Hub.Endpoint)
	var given download.Bearer
	s.sources.credential = func(string) (download.Bearer, error) { return given, nil }

	_, err := s.Ensure(t.Context(), rec, "mine", nil)
	wantReason(t, err, v1alpha1.ReasonTokenRefused)
	given = "s3:AKIA:other"
	_, err = s.Ensure(t.Context(), rec, "mine", nil)
	wantReason(t, err, v1alpha1.ReasonTokenRefused)
	given = "hf_token"
	_, err = s.Ensure(t.Context(), rec, "mine", nil)
	wantReason(t, err, v1alpha1.ReasonTokenRefused)
	given = "s3:AKIA:secret"
	var counted atomic.Int64
	s.sources.fetched = func(scheme string, n int) {
		if scheme == "s3" {
			counted.Add(int64(n))
		}
	}
	path, err := s.Ensure(t.Context(), rec, "mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range rec.Files {
		got, err := os.ReadFile(filepath.Join(path, f.Path))
		if err != nil || digest(got) != f.SHA256 {
			t.Errorf("%s: %d bytes, %v", f.Path, len(got), err)
		}
	}
	if counted.Load() != rec.Bytes() {
		t.Errorf("%d bytes were counted, want %d", counted.Load(), rec.Bytes())
	}
	resumed := false
	for _, r := range stand.Requests() {
		resumed = resumed || strings.Contains(r, "00001-of-2.safetensors bytes=")
	}
	if !resumed {
		t.Errorf("nothing was resumed: %q", stand.Requests())
	}
}

// cutting closes a connection after some bytes.
type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(p []byte) (int, error) {
	if len(p) > c.left {
		c.ResponseWriter.Write(p[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}
