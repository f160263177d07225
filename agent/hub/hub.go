// Package hub speaks the protocol of the Hugging Face Hub, as its mirrors do:
// it turns an hf:// source into the commit that its revision means, lists the
// files there with sizes and digests, and chooses those that make a model.
//
// It owns the form of such sources, the listing (paged, bounded), the choice,
// and what the Hub's error codes mean to a user. It refuses a repository in
// which the choice is not clear, paths that would leave a folder, listings
// without end, and revisions that the hub does not know. It fetches listings
// alone: headers are read by package inspect, files by package store.
//
// Start reading at Hub.List, then Choose.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
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
	maxPage    = 8 << 20
)

// Hub asks one hub for what it holds.
type Hub struct {
	Client *download.Client
	// Endpoint is where the hub or its mirror answers, without a slash at the
	// end; empty means DefaultEndpoint.
	Endpoint string
}

// Listing is what a repository holds at a commit.
type Listing struct {
	// Commit that the source's revision means, 40 hex digits.
	Commit string
	Files  []Entry
}

// Entry is one file of a repository.
type Entry struct {
	Path  string
	Bytes int64
	// SHA256 is known of files in large file storage alone; empty otherwise.
	SHA256 string
}

func (h *Hub) endpoint() string {
	if h.Endpoint == "" {
		return DefaultEndpoint
	}
	return strings.TrimRight(h.Endpoint, "/")
}

// URL is the address of a file of a repository at a commit.
func (h *Hub) URL(repo, commit, path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return h.endpoint() + "/" + repo + "/resolve/" + commit + "/" + strings.Join(parts, "/")
}

// List asks which commit a source's revision means and what lies there. Every
// failure but the context's own is a *download.Error.
func (h *Hub) List(ctx context.Context, s Source) (Listing, error) {
	var info struct {
		SHA string `json:"sha"`
	}
	api := h.endpoint() + "/api/models/" + s.Repo
	if _, err := h.get(ctx, api+"/revision/"+url.PathEscape(s.Revision), s, &info); err != nil {
		return Listing{}, err
	}
	if !IsCommit(info.SHA) || IsCommit(s.Revision) && info.SHA != s.Revision {
		return Listing{}, strange(s, "names no commit for the revision")
	}
	l := Listing{Commit: info.SHA}
	next := api + "/tree/" + l.Commit + "?recursive=true"
	for page := 0; next != ""; page++ {
		if page == maxPages || len(l.Files) > maxEntries {
			return Listing{}, fail("repository %s lists more than %d pages or %d files; use one that holds fewer", s.Repo, maxPages, maxEntries)
		}
		var nodes []node
		link, err := h.get(ctx, next, s, &nodes)
		if err != nil {
			return Listing{}, err
		}
		for _, n := range nodes {
			if err := l.add(n, s); err != nil {
				return Listing{}, err
			}
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
	LFS  *struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// add takes a file of the source's path.
func (l *Listing) add(n node, s Source) error {
	if n.Type != "file" || s.Path != "" && n.Path != s.Path && !strings.HasPrefix(n.Path, s.Path+"/") {
		return nil
	}
	if !cleanPath(n.Path) || n.Size < 0 {
		return strange(s, "lists a file that cannot be stored")
	}
	e := Entry{Path: n.Path, Bytes: n.Size}
	if n.LFS != nil {
		e.SHA256, e.Bytes = strings.TrimPrefix(n.LFS.OID, "sha256:"), n.LFS.Size
		if len(e.SHA256) != 64 || strings.Trim(e.SHA256, "0123456789abcdef") != "" || e.Bytes < 0 {
			return strange(s, "lists a large file without its SHA-256")
		}
	}
	l.Files = append(l.Files, e)
	return nil
}

// get reads one answer of the hub's API and returns its Link header.
func (h *Hub) get(ctx context.Context, address string, s Source, into any) (link string, err error) {
	resp, err := h.Client.Get(ctx, address, nil)
	if err != nil {
		return "", explain(err, s)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	switch {
	case err != nil:
		return "", err
	case len(raw) > maxPage:
		return "", strange(s, fmt.Sprintf("sends more than %d MiB for a listing", maxPage>>20))
	case json.Unmarshal(raw, into) != nil:
		return "", strange(s, "answers no JSON")
	}
	return resp.Header.Get("Link"), nil
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
			return "", strange(s, "names a next page that is no address")
		}
		next, err := base.Parse(strings.TrimSuffix(strings.TrimPrefix(target, "<"), ">"))
		if err != nil || next.Host != base.Host || next.Scheme != base.Scheme {
			return "", strange(s, "names a next page on another host")
		}
		return next.String(), nil
	}
	return "", nil
}

// strange is for an answer that no hub gives.
func strange(s Source, how string) *download.Error {
	return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable,
		Message: fmt.Sprintf("what answers for repository %s %s; check the hub's endpoint of the Mac's agent", s.Repo, how)}
}

// explain says what the hub's error codes mean for the user. The Hub tells
// those who may not see a repository that there is none.
func explain(err error, s Source) error {
	var e *download.Error
	if !errors.As(err, &e) {
		return err
	}
	said, reason := "", v1alpha1.ReasonSourceNotFound
	switch {
	case e.Code == "GatedRepo":
		said, reason = fmt.Sprintf("repository %s is gated, and Macs ask without a token; use one that everybody may read, or a mirror", s.Repo), v1alpha1.ReasonSourceForbidden
	case e.Code == "RevisionNotFound":
		said = fmt.Sprintf("repository %s has no revision %.64q; name a branch, a tag or a commit that it has", s.Repo, s.Revision)
	case e.Code == "RepoNotFound", e.Code == "" && (e.Reason == v1alpha1.ReasonSourceNotFound || e.Reason == v1alpha1.ReasonSourceForbidden):
		said = fmt.Sprintf("the hub has no repository %s that everybody may read; check the name (Macs ask without a token)", s.Repo)
	default:
		return err
	}
	return &download.Error{Reason: reason, Message: said, Code: e.Code}
}

// Presentable reports whether a text from outside may stand in a status.
func Presentable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
