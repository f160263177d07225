// Package hub implements the protocol of the Hugging Face Hub and its mirrors: it
// resolves an hf:// source to a commit, lists the files with sizes and digests,
// and chooses those that make up a model.
//
// It owns the syntax of such sources, the listing (paged, bounded), the choice,
// the meaning of the Hub's error codes for a user, and the destination of a
// user's token: the endpoint of this Mac's configuration, never a host that a
// source, a listing or a redirect names. It refuses a repository in which the
// choice is ambiguous, paths that would leave a folder, endless listings, and
// unknown revisions. It only fetches listings: package inspect reads headers, and
// package store the files.
//
// Start reading at Hub.List, then Choose.
package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// DefaultEndpoint is the Hub itself.
const DefaultEndpoint = "https://huggingface.co"

// Bounds of one listing. The largest repositories of models have a few
// thousand files.
const (
	maxPages   = 50
	maxEntries = 20_000
	maxNodes   = 5 * maxEntries // files of other paths and folders are dropped
	maxPage    = 8 << 20
)

// Hub asks one hub for what it holds.
type Hub struct {
	Client *download.Client
	// Endpoint is where the hub or its mirror answers, without a slash at the
	// end; empty means DefaultEndpoint.
	Endpoint string
	// moved replaces Endpoint.
	moved atomic.Pointer[string]
}

// SetEndpoint changes where the hub answers, from the next request on.
func (h *Hub) SetEndpoint(endpoint string) { h.moved.Store(&endpoint) }

// Listing is what a repository holds at a commit.
type Listing struct {
	// Commit that the source's revision means, 40 hex digits.
	Commit string
	Files  []Entry
	nodes  int // lines that were read
}

// Entry is one file of a repository.
type Entry struct {
	Path  string
	Bytes int64
	// SHA256 is known of files in large file storage alone; empty otherwise.
	SHA256 string
	// Blob is git's name of a file that lies in git itself: the SHA-1 of "blob",
	// its size and its content; empty of others.
	Blob string
}

func (h *Hub) endpoint() string {
	endpoint := h.Endpoint
	if moved := h.moved.Load(); moved != nil {
		endpoint = *moved
	}
	if endpoint == "" {
		return DefaultEndpoint
	}
	return strings.TrimRight(endpoint, "/")
}

// URL is the address of a file of a repository at a commit.
func (h *Hub) URL(repo, commit, path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return h.endpoint() + "/" + repo + "/resolve/" + commit + "/" + strings.Join(parts, "/")
}

// File asks for a file of a repository at a commit, with the token if there is
// one. Every failure but the context's own is a *download.Error.
func (h *Hub) File(ctx context.Context, s Source, commit, path string, token download.Bearer, header http.Header) (*http.Response, error) {
	resp, err := h.Client.Get(ctx, h.URL(s.Repo, commit, path), token.Header(header))
	if err != nil {
		return nil, Explain(err, s, token != "")
	}
	return resp, nil
}

// List asks which commit a source's revision means and what lies there, with
// the token if there is one. Every failure but the context's own is a
// *download.Error.
func (h *Hub) List(ctx context.Context, s Source, token download.Bearer) (Listing, error) {
	var info struct {
		SHA string `json:"sha"`
	}
	api := h.endpoint() + "/api/models/" + s.Repo
	inform := func(d *json.Decoder) error { return d.Decode(&info) }
	if _, err := h.get(ctx, api+"/revision/"+url.PathEscape(s.Revision), s, token, inform); err != nil {
		return Listing{}, err
	}
	if !IsCommit(info.SHA) || IsCommit(s.Revision) && info.SHA != s.Revision {
		return Listing{}, strange(s, "returned no commit for the revision")
	}
	l := Listing{Commit: info.SHA}
	next := api + "/tree/" + l.Commit + "?recursive=true"
	for page := 0; next != ""; page++ {
		if page == maxPages {
			return Listing{}, tooMany(s)
		}
		link, err := h.get(ctx, next, s, token, func(d *json.Decoder) error { return l.read(d, s) })
		if err != nil {
			return Listing{}, err
		}
		if next, err = h.follow(next, link, s); err != nil {
			return Listing{}, err
		}
	}
	return l, nil
}

// node is one line of a tree listing.
type node struct {
	Type string `json:"type"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	OID  string `json:"oid"`
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// read decodes the entries of a page one by one: an 8 MiB page of empty entries would take
// hundreds of MiB at once.
func (l *Listing) read(d *json.Decoder, s Source) error {
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return cmp.Or(err, errNoList)
	}
	for d.More() {
		if l.nodes++; l.nodes > maxNodes || len(l.Files) > maxEntries {
			return tooMany(s)
		}
		var n node
		if err := d.Decode(&n); err != nil {
			return err
		}
		if err := l.add(n, s); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

var errNoList = errors.New("the listing is no JSON array")

func tooMany(s Source) error {
	return fail("repository %s has more than %d pages or %d files; use a smaller one", s.Repo, maxPages, maxEntries)
}

// add takes a file of the source's path.
func (l *Listing) add(n node, s Source) error {
	if n.Type != "file" || s.Path != "" && n.Path != s.Path && !strings.HasPrefix(n.Path, s.Path+"/") {
		return nil
	}
	if !CleanPath(n.Path) || n.Size < 0 {
		return strange(s, "lists a file that cannot be stored")
	}
	e := Entry{Path: n.Path, Bytes: n.Size, Blob: n.OID}
	if n.LFS != nil {
		e.Blob = "" // that of the pointer, not of the file
		e.SHA256, e.Bytes = strings.TrimPrefix(n.LFS.OID, "sha256:"), n.LFS.Size
		if len(e.SHA256) != 64 || strings.Trim(e.SHA256, "0123456789abcdef") != "" || e.Bytes < 0 {
			return strange(s, "lists a large file without its SHA-256")
		}
	}
	if n.LFS == nil && !IsCommit(e.Blob) {
		return strange(s, "lists a file without its git object ID")
	}
	l.Files = append(l.Files, e)
	return nil
}

// get requests an address of the hub's API and returns the Link header of the response; read
// decodes its only value.
func (h *Hub) get(ctx context.Context, address string, s Source, token download.Bearer, read func(*json.Decoder) error) (link string, err error) {
	resp, err := h.Client.Get(ctx, address, token.Header(nil))
	if err != nil {
		return "", Explain(err, s, token != "")
	}
	defer resp.Body.Close()
	body := &answer{LimitedReader: io.LimitedReader{R: resp.Body, N: maxPage + 1}}
	d := json.NewDecoder(body)
	if err = read(d); err == nil {
		if _, err = d.Token(); err == nil {
			err = errTrailing
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	var typed *download.Error
	switch {
	case body.failed != nil:
		return "", body.failed
	case body.N <= 0:
		return "", strange(s, fmt.Sprintf("sent a listing of more than %d MiB", maxPage>>20))
	case errors.As(err, &typed):
		return "", err
	case err != nil:
		return "", strange(s, "did not return JSON")
	}
	return resp.Header.Get("Link"), nil
}

var errTrailing = errors.New("there is more than one JSON value")

// answer is a bounded response body that remembers its failure.
type answer struct {
	io.LimitedReader
	failed error
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.LimitedReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		a.failed = err
	}
	return n, err
}

// follow reads the address of the next page, which lies on the same host.
func (h *Hub) follow(from, link string, s Source) (string, error) {
	for part := range strings.SplitSeq(link, ",") {
		target, rel, _ := strings.Cut(part, ";")
		if !strings.Contains(rel, `rel="next"`) {
			continue
		}
		target = strings.TrimSpace(target)
		base, err := url.Parse(from)
		if err != nil {
			return "", strange(s, "returned an invalid URL for the next page")
		}
		next, err := base.Parse(strings.TrimSuffix(strings.TrimPrefix(target, "<"), ">"))
		if err != nil || next.Host != base.Host || next.Scheme != base.Scheme {
			return "", strange(s, "returned a next page on another host")
		}
		return next.String(), nil
	}
	return "", nil
}

// CheckToken refuses to send a hub what is another kind of credential: those have
// a colon, and no token of a hub has one.
func CheckToken(b download.Bearer) error {
	if strings.Contains(string(b), ":") {
		return &download.Error{Reason: v1alpha1.ReasonTokenRefused, Message: "the Secret of model.secretRef has no hub token; put one under the key token"}
	}
	return nil
}

// strange is for an answer that no hub gives.
func strange(s Source, how string) *download.Error {
	return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable,
		Message: fmt.Sprintf("the server that answers for repository %s %s; check the hub endpoint of this Mac's agent", s.Repo, how)}
}

// Explain explains the hub's response to the user, who sent a token or none. The
// Hub reports a repository as missing to users without access.
func Explain(err error, s Source, token bool) error {
	var e *download.Error
	if !errors.As(err, &e) {
		return err
	}
	no := func(reason, format string, args ...any) error {
		return &download.Error{Reason: reason, Message: fmt.Sprintf(format, args...), Code: e.Code, Status: e.Status}
	}
	unseen := e.Code == "RepoNotFound" || e.Code == "" && (e.Reason == v1alpha1.ReasonSourceNotFound || e.Reason == v1alpha1.ReasonSourceForbidden)
	switch {
	case e.Status == 0:
		return err // no response
	case e.Elsewhere && download.Denied(err): // an address that was good for a while
		return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "the hub's storage rejected the download URL that the hub issued; requesting a new one", Status: e.Status}
	case e.Code == "GatedRepo" && token:
		return no(v1alpha1.ReasonGatedModel, "repository %s is gated, and the account of the token in model.secretRef may not read it: accept its licence on the hub with that account, and allow the token to read gated repositories; retrying", s.Repo)
	case e.Code == "GatedRepo":
		return no(v1alpha1.ReasonGatedModel, "repository %s is gated, and no token is set: accept its licence on the hub, and reference a Secret with a token of that account in model.secretRef", s.Repo)
	case e.Code == download.CodeInvalidToken:
		return no(v1alpha1.ReasonTokenRefused, "the hub rejected the token of model.secretRef: it is wrong, expired or revoked; put a valid one into the Secret")
	case e.Code == "RevisionNotFound":
		return no(v1alpha1.ReasonSourceNotFound, "repository %s has no revision %.64q; use an existing branch, tag or commit", s.Repo, s.Revision)
	case unseen && token && e.Status == http.StatusForbidden:
		return no(v1alpha1.ReasonTokenRefused, "the token of model.secretRef may not read repository %s; grant it read access on the hub, or put another token into the Secret", s.Repo)
	case unseen && token:
		return no(v1alpha1.ReasonSourceNotFound, "the hub has no repository %s that the token of model.secretRef may read; check the name and the access rights of the token's account", s.Repo)
	case unseen:
		return no(v1alpha1.ReasonSourceNotFound, "the hub has no public repository %s; check the name (no token was sent: for a private repository, reference a Secret with a token in model.secretRef)", s.Repo)
	}
	return err
}

// Presentable reports whether a text from outside may stand in a status.
func Presentable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
