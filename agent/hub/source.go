package hub

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Scheme begins every source on a hub.
const Scheme = "hf://"

// defaultRevision is what a source without a revision means.
const defaultRevision = "main"

// Source is a parsed hf:// source: hf://OWNER/NAME[@REVISION][/PATH].
type Source struct {
	// Repo is OWNER/NAME.
	Repo string
	// Revision is a branch, a tag, a pull request (refs/pr/1) or a commit.
	Revision string
	// Path limits the source to one file or folder of the repository; empty
	// means all of it.
	Path string
}

var (
	// What the Hub takes for an owner or a name.
	repoPart = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,94}[A-Za-z0-9])?$`)
	revision = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,254}$`)
	commit   = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// IsCommit reports whether a revision is a whole commit id, which never means
// anything else later.
func IsCommit(rev string) bool { return commit.MatchString(rev) }

// Parse parses a source. at is the separate revision, if any; if both are given
// they must agree.
func Parse(source, at string) (Source, error) {
	rest, ok := strings.CutPrefix(source, Scheme)
	if !ok {
		return Source{}, fail("the source does not start with %s", Scheme)
	}
	owner, rest, _ := strings.Cut(rest, "/")
	name, path, _ := strings.Cut(rest, "/")
	s := Source{Revision: at}
	if n, rev, ok := strings.Cut(name, "@"); ok {
		// A revision with a slash is written with %2F, or separately from the
		// source.
		plain, err := url.PathUnescape(rev)
		if err != nil || plain == "" {
			return Source{}, fail("cannot parse the revision after @; set it in model.revision")
		}
		if at != "" && at != plain {
			return Source{}, fail("the source specifies revision %.64q and model.revision specifies %.64q; keep only one", plain, at)
		}
		name, s.Revision = n, plain
	}
	for _, part := range []string{owner, name} {
		if !repoPart.MatchString(part) || strings.Contains(part, "--") || strings.Contains(part, "..") {
			return Source{}, fail("the source has no repository; write hf://OWNER/NAME")
		}
	}
	s.Repo = owner + "/" + name
	if s.Revision == "" {
		s.Revision = defaultRevision
	}
	if !revision.MatchString(s.Revision) || strings.Contains(s.Revision, "..") || strings.Contains(s.Revision, "//") {
		return Source{}, fail("%.64q is not a valid revision; use a branch, a tag or a commit", s.Revision)
	}
	if s.Path = strings.Trim(path, "/"); s.Path != "" && !CleanPath(s.Path) {
		return Source{}, fail("the source's path %.64q leaves the repository; write it without . and ..", s.Path)
	}
	return s, nil
}

// CleanPath reports whether a path is safe as a path relative to one of our
// folders.
func CleanPath(p string) bool {
	if p == "" || len(p) > 512 || strings.ContainsAny(p, "\\\x00") || strings.HasPrefix(p, "/") {
		return false
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return Presentable(p)
}

func fail(format string, args ...any) *download.Error {
	return &download.Error{Reason: v1alpha1.ReasonSourceForbidden, Message: fmt.Sprintf(format, args...)}
}
