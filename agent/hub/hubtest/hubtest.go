// Package hubtest is a hub for tests that speaks the protocol of the Hugging
// Face Hub well enough for its official Python client: revisions, trees in
// pages, files with ranges, large ones by redirect to another path, private
// and gated repositories, and the error codes.
//
// It owns no data: repositories are given to it. It refuses what the Hub
// refuses, in the same words and codes.
//
// Start reading at Hub.ServeHTTP.
package hubtest

import (
	"bytes"
	"cmp"
	"crypto/sha1" //nolint:gosec // git's names of files and commits
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Repo is one repository of models.
type Repo struct {
	// Commits by their ids; Refs are branches and tags that name one.
	Commits map[string]map[string]File
	Refs    map[string]string
	// Private repositories are found with Token alone; gated ones are found, and
	// read with Token alone.
	Private, Gated bool
	Token          string
}

// File is a file; LFS means that it is in large file storage, Xet that the hub
// also offers it by its newer protocol, as it does with most large files.
type File struct {
	Content  []byte
	LFS, Xet bool
}

// Commit names a set of files as git names commits: by 40 hex digits that
// depend on the content.
func Commit(files map[string]File) string {
	sum := sha1.New()
	for _, p := range paths(files) {
		fmt.Fprintf(sum, "%s %x\n", p, sha256.Sum256(files[p].Content))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Of makes a repository whose branch main has these files.
func Of(files map[string]File) *Repo {
	id := Commit(files)
	return &Repo{Commits: map[string]map[string]File{id: files}, Refs: map[string]string{"main": id}}
}

// FirstByte is the range of a request that only asks whether a file may be read.
const FirstByte = "bytes=0-0"

// Hub serves repositories by name.
type Hub struct {
	// PageSize is how many files a page of a tree lists; 0 means 100.
	PageSize int
	// Large is the origin that large files are served from, by this handler too;
	// empty means that of the request. On the Hub it is another host, and its own
	// client wants that.
	Large string

	mu       sync.Mutex
	repos    map[string]*Repo
	requests []string
	bearing  []string
}

// Put adds or replaces a repository.
func (h *Hub) Put(name string, r *Repo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.repos == nil {
		h.repos = map[string]*Repo{}
	}
	h.repos[name] = r
}

// Requests are the methods and paths that were asked for, in their order, and after a path the
// range if it is FirstByte.
func (h *Hub) Requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// Bearing are the requests that carried a token, as HOST METHOD PATH.
func (h *Hub) Bearing() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.bearing)
}

// ServeHTTP answers as the Hub does.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	request := r.Method + " " + r.URL.EscapedPath()
	if r.Header.Get("Range") == FirstByte {
		request += " " + FirstByte
	}
	h.requests = append(h.requests, request)
	if r.Header.Get("Authorization") != "" {
		h.bearing = append(h.bearing, r.Host+" "+r.Method+" "+r.URL.EscapedPath())
	}
	h.mu.Unlock()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, http.StatusMethodNotAllowed, "", "Method not allowed")
		return
	}
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	if rest, ok := strings.CutPrefix(path, "api/models/"); ok {
		h.api(w, r, strings.Split(rest, "/"))
		return
	}
	if rest, ok := strings.CutPrefix(path, "large/"); ok {
		h.large(w, r, rest)
		return
	}
	h.resolve(w, r, strings.Split(path, "/"))
}

// find is the repository that a request may see; it refuses otherwise.
func (h *Hub) find(w http.ResponseWriter, r *http.Request, name string, content bool) *Repo {
	h.mu.Lock()
	repo := h.repos[name]
	known := r.Header.Get("Authorization") == ""
	for _, any := range h.repos {
		known = known || any.Token != "" && r.Header.Get("Authorization") == "Bearer "+any.Token
	}
	h.mu.Unlock()
	if !known {
		refuse(w, http.StatusUnauthorized, "", "Invalid credentials in Authorization header")
		return nil
	}
	allowed := repo != nil && repo.Token != "" && r.Header.Get("Authorization") == "Bearer "+repo.Token
	switch {
	case repo == nil || repo.Private && !allowed:
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
	case repo.Gated && content && !allowed:
		refuse(w, http.StatusForbidden, "GatedRepo", "Access to model "+name+" is restricted")
	default:
		return repo
	}
	return nil
}

// at is the commit that an escaped revision names; it refuses otherwise.
func (repo *Repo) at(w http.ResponseWriter, escaped string) (id string, ok bool) {
	rev, err := url.PathUnescape(escaped)
	if id, ok = repo.Refs[rev]; !ok {
		id = rev
	}
	if _, ok = repo.Commits[id]; !ok || err != nil {
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+rev)
		return "", false
	}
	return id, true
}

// api serves /api/models/OWNER/NAME[/revision/REV | /tree/REV].
func (h *Hub) api(w http.ResponseWriter, r *http.Request, parts []string) {
	if len(parts) < 2 {
		refuse(w, http.StatusNotFound, "", "Not found")
		return
	}
	name := parts[0] + "/" + parts[1]
	repo := h.find(w, r, name, false)
	if repo == nil {
		return
	}
	rest := append(slices.Clone(parts[2:]), "", "")
	switch rest[0] {
	case "", "revision":
		rev := rest[1]
		if rest[0] == "" {
			rev = "main"
		}
		if id, ok := repo.at(w, rev); ok {
			h.info(w, name, repo, id)
		}
	case "tree":
		if id, ok := repo.at(w, rest[1]); ok {
			h.tree(w, r, repo.Commits[id])
		}
	default:
		refuse(w, http.StatusNotFound, "", "Not found")
	}
}

func (h *Hub) info(w http.ResponseWriter, name string, repo *Repo, id string) {
	type sibling struct {
		Name string `json:"rfilename"`
	}
	var siblings []sibling
	for _, p := range paths(repo.Commits[id]) {
		siblings = append(siblings, sibling{p})
	}
	var gated any = false
	if repo.Gated {
		gated = "auto"
	}
	answer(w, map[string]any{"id": name, "modelId": name, "sha": id, "private": repo.Private, "gated": gated, "siblings": siblings, "tags": []string{}, "downloads": 0})
}

func (h *Hub) tree(w http.ResponseWriter, r *http.Request, files map[string]File) {
	size := h.PageSize
	if size <= 0 {
		size = 100
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	all := paths(files)
	from = min(max(0, from), len(all))
	to := min(len(all), from+size)
	nodes := []map[string]any{}
	for _, p := range all[from:to] {
		f := files[p]
		n := map[string]any{"type": "file", "path": p, "size": len(f.Content), "oid": blob(f)}
		if f.LFS {
			n["lfs"] = map[string]any{"oid": digest(f), "size": len(f.Content), "pointerSize": 134}
			if f.Xet {
				n["xetHash"] = digest(f)
			}
		}
		nodes = append(nodes, n)
	}
	if to < len(all) {
		next := *r.URL
		q := next.Query()
		q.Set("cursor", strconv.Itoa(to))
		next.RawQuery = q.Encode()
		w.Header().Set("Link", fmt.Sprintf(`<%s%s>; rel="next"`, origin(r), next.RequestURI()))
	}
	answer(w, nodes)
}

// resolve serves /OWNER/NAME/resolve/REV/PATH.
func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, parts []string) {
	if len(parts) < 5 || parts[2] != "resolve" {
		refuse(w, http.StatusNotFound, "", "Not found")
		return
	}
	name := parts[0] + "/" + parts[1]
	repo := h.find(w, r, name, true)
	if repo == nil {
		return
	}
	id, ok := repo.at(w, parts[3])
	if !ok {
		return
	}
	path, err := url.PathUnescape(strings.Join(parts[4:], "/"))
	f, ok := repo.Commits[id][path]
	w.Header().Set("X-Repo-Commit", id)
	if !ok || err != nil {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	if f.LFS {
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(f.Content)))
		w.Header().Set("X-Linked-ETag", `"`+digest(f)+`"`)
		if f.Xet {
			w.Header().Set("X-Xet-Hash", digest(f))
			w.Header().Set("Link", fmt.Sprintf(`<%s/api/models/%s/xet-read-token/%s>; rel="xet-auth"`, origin(r), name, id))
		}
		http.Redirect(w, r, cmp.Or(h.Large, origin(r))+"/large/"+name+"/"+id+"/"+digest(f), http.StatusFound)
		return
	}
	serve(w, r, blob(f), f)
}

// origin is how the hub was reached.
func origin(r *http.Request) string {
	if r.TLS == nil {
		return "http://" + r.Host
	}
	return "https://" + r.Host
}

// large serves the targets of redirects; as on the Hub, the URL alone grants
// access.
func (h *Hub) large(w http.ResponseWriter, r *http.Request, rest string) {
	parts := strings.Split(rest, "/")
	if len(parts) == 4 {
		h.mu.Lock()
		repo := h.repos[parts[0]+"/"+parts[1]]
		h.mu.Unlock()
		if repo != nil {
			for _, f := range repo.Commits[parts[2]] {
				if f.LFS && digest(f) == parts[3] {
					serve(w, r, digest(f), f)
					return
				}
			}
		}
	}
	refuse(w, http.StatusForbidden, "", "Access denied")
}

func serve(w http.ResponseWriter, r *http.Request, tag string, f File) {
	w.Header().Set("ETag", `"`+tag+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.Content))
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(v) // a test's client that went away
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", message)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": message})
}

func paths(files map[string]File) []string {
	var out []string
	for p := range files {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

func digest(f File) string {
	sum := sha256.Sum256(f.Content)
	return hex.EncodeToString(sum[:])
}

// blob is git's name of a file.
func blob(f File) string {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(f.Content)), f.Content...))
	return hex.EncodeToString(sum[:])
}
