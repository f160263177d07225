package oci

import (
	"fmt"
	"regexp"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Scheme begins every source in a registry.
const Scheme = "oci://"

// Source is a parsed oci:// source: oci://REGISTRY/REPOSITORY:TAG or
// oci://REGISTRY/REPOSITORY@sha256:DIGEST.
type Source struct {
	// Registry is its host, with a port if need be.
	Registry   string
	Repository string
	// Reference is a tag, or a digest with its algorithm.
	Reference string
}

// What the distribution specification takes for names, tags and digests.
var (
	registryName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$`)
	repositoryName = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagName        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	digestName     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Parse reads a source.
func Parse(source string) (Source, error) {
	rest, ok := strings.CutPrefix(source, Scheme)
	host, rest, named := strings.Cut(rest, "/")
	if !ok || !named || !registryName.MatchString(host) || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return Source{}, fail("the source has no registry; write oci://REGISTRY/REPOSITORY:TAG")
	}
	s := Source{Registry: host, Reference: "latest"}
	if name, digest, ok := strings.Cut(rest, "@"); ok {
		if !digestName.MatchString(digest) {
			return Source{}, fail("%.80q is not a digest; write @sha256: and 64 lower-case hex digits", digest)
		}
		// A tag next to a digest is ignored.
		s.Repository, _, _ = strings.Cut(name, ":")
		s.Reference = digest
	} else if name, tag, ok := strings.Cut(rest, ":"); ok {
		s.Repository, s.Reference = name, tag
	} else {
		s.Repository = rest
	}
	if len(s.Repository) > 255 || !repositoryName.MatchString(s.Repository) {
		return Source{}, fail("%.80q is not a repository of a registry; write oci://REGISTRY/REPOSITORY:TAG, in lower case", s.Repository)
	}
	if !digestName.MatchString(s.Reference) && !tagName.MatchString(s.Reference) {
		return Source{}, fail("%.80q is not a tag; use letters, digits and . _ -", s.Reference)
	}
	return s, nil
}

// host answers for the registry: Docker Hub's has another name than its images.
func (s Source) host() string {
	if s.Registry == "docker.io" {
		return "registry-1.docker.io"
	}
	return s.Registry
}

func (s Source) String() string {
	by := ":"
	if digestName.MatchString(s.Reference) {
		by = "@"
	}
	return Scheme + s.Registry + "/" + s.Repository + by + s.Reference
}

// BlobURL is the address of a file by the SHA-256 of its content.
func (s Source) BlobURL(sha256 string) string {
	return "https://" + s.host() + "/v2/" + s.Repository + "/blobs/sha256:" + sha256
}

func (s Source) manifestURL(reference string) string {
	return "https://" + s.host() + "/v2/" + s.Repository + "/manifests/" + reference
}

func fail(format string, args ...any) *download.Error {
	return &download.Error{Reason: v1alpha1.ReasonSourceForbidden, Message: fmt.Sprintf(format, args...)}
}
