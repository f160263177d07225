// Package ocitest is a registry for tests: manifests by tag and digest, blobs
// with ranges, and a token server of its own, as the distribution specification
// and Docker's token protocol describe them.
//
// It owns no data: artifacts are given to it. It refuses what is asked without
// the token for that very repository.
//
// Start reading at Registry.ServeHTTP.
package ocitest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Layer is one layer of an artifact.
type Layer struct {
	MediaType   string
	Annotations map[string]string
	Content     []byte
}

// Registry serves artifacts by their repositories.
type Registry struct {
	// Auth is the authentication scheme: "", Basic or Bearer.
	Auth string
	// Name and Password of the one user; empty: everybody is given a token.
	Name, Password string
	// Realm is the token server; empty means that of the request.
	Realm string

	mu        sync.Mutex
	manifests map[string][]byte // REPOSITORY:REFERENCE
	blobs     map[string][]byte // REPOSITORY@DIGEST
	requests  []string
	asked     []string
	revoked   int // tokens that are taken no longer
}

// Revoke takes no longer what was given as a token so far.
func (r *Registry) Revoke() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revoked = len(r.asked)
}

// Sum is the digest of a content.
func Sum(b []byte) string { s := sha256.Sum256(b); return "sha256:" + hex.EncodeToString(s[:]) }

// Push puts an artifact under a tag, and returns its digest.
func (r *Registry) Push(repository, tag string, layers []Layer) string {
	list := []map[string]any{}
	for _, l := range layers {
		r.put(repository, l.Content)
		list = append(list, map[string]any{"mediaType": l.MediaType, "digest": Sum(l.Content), "size": len(l.Content), "annotations": l.Annotations})
	}
	return r.PushManifest(repository, tag, map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": list})
}

// PushManifest puts any manifest under a tag, and returns its digest.
func (r *Registry) PushManifest(repository, tag string, m map[string]any) string {
	raw, _ := json.Marshal(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.manifests == nil {
		r.manifests = map[string][]byte{}
	}
	r.manifests[repository+":"+tag], r.manifests[repository+":"+Sum(raw)] = raw, raw
	return Sum(raw)
}

// Swap makes a reference mean other bytes, as a registry that lies would.
func (r *Registry) Swap(repository, reference string, raw []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.manifests[repository+":"+reference] = raw
}

func (r *Registry) put(repository string, content []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blobs == nil {
		r.blobs = map[string][]byte{}
	}
	r.blobs[repository+"@"+Sum(content)] = content
}

// Requests that came so far, and those that the token server was asked.
func (r *Registry) Requests() (requests, tokens []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests), slices.Clone(r.asked)
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/token" {
		r.token(w, req)
		return
	}
	r.mu.Lock()
	r.requests = append(r.requests, strings.TrimSpace(req.URL.Path+" "+req.Header.Get("Range")))
	r.mu.Unlock()
	path, _ := strings.CutPrefix(req.URL.Path, "/v2/")
	repository, rest, blob := strings.Cut(path, "/blobs/")
	if !blob {
		repository, rest, _ = strings.Cut(path, "/manifests/")
	}
	if !r.allowed(req, repository, path) {
		realm := r.Realm
		if realm == "" {
			realm = "https://" + req.Host + "/token"
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`%s realm="%s",service="stand",scope="repository:other:pull"`, r.Auth, realm))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	content, found := r.manifests[repository+":"+rest]
	if blob {
		content, found = r.blobs[repository+"@"+rest]
	}
	r.mu.Unlock()
	switch {
	case path == "":
		w.WriteHeader(http.StatusOK)
	case !found:
		w.WriteHeader(http.StatusNotFound)
	default:
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(content))
	}
}

func (r *Registry) allowed(req *http.Request, repository, path string) bool {
	given := req.Header.Get("Authorization")
	switch r.Auth {
	case "":
		return true
	case "Basic":
		name, password, ok := req.BasicAuth()
		return ok && name == r.Name && password == r.Password
	}
	number, ok := strings.CutPrefix(given, "Bearer for-"+repository+"-")
	n, err := strconv.Atoi(number)
	r.mu.Lock()
	defer r.mu.Unlock()
	return path != "" && ok && err == nil && n > r.revoked
}

// token gives one for the repository that is asked for.
func (r *Registry) token(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.asked = append(r.asked, req.URL.RawQuery)
	number := len(r.asked)
	r.mu.Unlock()
	name, password, _ := req.BasicAuth()
	if r.Name != "" && (name != r.Name || password != r.Password) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	scope := strings.Split(req.URL.Query().Get("scope"), ":")
	if len(scope) != 3 || req.URL.Query().Get("service") != "stand" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, `{"token":"for-%s-%d","expires_in":300}`, scope[1], number)
}
