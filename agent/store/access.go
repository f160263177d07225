package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/api/model"
)

// A digest is no permission: digests are published, and a tenant's own server or
// repository may name any. Weights that are here are handed out to those whose
// credential brought them, and to others after the source that they came from let
// them in. What another source claims to have is downloaded from there, which
// proves that it has it. The kubelet treats images that are on a node already in
// the same way (KubeletEnsureSecretPulledImages).

// want is a record with the name of the credential that an assignment has for its
// source; ref is empty where it has none.
type want struct {
	model.Record
	ref string
}

// origin is a place that weights came from, or that has let a credential read
// them, and that credential.
type origin struct {
	Place string `json:"place"`
	// TokenRef names the credential; it identifies the tenant, and stays the same
	// when the tenant renews the token.
	TokenRef string `json:"tokenRef,omitempty"`
}

// maxOrigins bounds how many a record keeps, the latest ones.
const maxOrigins = 64

func (w want) origin() origin { return origin{placeOf(w.Source), w.ref} }

// placeOf is the part of a source that its host gives access to as a whole: a
// repository of a hub or a registry, a folder of a bucket, one URL.
func placeOf(source string) string {
	if s, err := hub.Parse(source, ""); err == nil {
		return hub.Scheme + s.Repo
	}
	if s, err := oci.Parse(source); err == nil {
		return oci.Scheme + s.Registry + "/" + s.Repository
	}
	return source
}

// partial is the name of the folder that a download of these weights is written
// to: what one tenant has begun is not continued by another.
func partial(digest string, o origin) string {
	sum := sha256.Sum256([]byte(o.Place + "\x00" + o.TokenRef))
	return folder(digest) + "-" + hex.EncodeToString(sum[:8])
}

// digestOf reads the digest of a name that partial made.
func digestOf(partial string) string {
	name, _, _ := strings.Cut(partial, "-")
	return "sha256:" + name
}

// entitles reports whether weights may be handed out without asking anybody: the
// same credential brought them, or they came from the same place without any.
func (e entry) entitles(o origin) bool {
	return slices.ContainsFunc(e.origins(), func(have origin) bool {
		return have == o || o.TokenRef != "" && have.TokenRef == o.TokenRef
	})
}

// from reports whether weights came from a place.
func (e entry) from(place string) bool {
	return slices.ContainsFunc(e.origins(), func(have origin) bool { return have.Place == place })
}

// unknownRef stands for the credential of weights that were stored before
// credentials were noted.
const unknownRef = "unknown"

func (e entry) origins() []origin {
	if len(e.Origins) == 0 {
		return []origin{{placeOf(e.Record.Source), unknownRef}}
	}
	return e.Origins
}

// with is the entry with one more origin.
func (e entry) with(o origin) entry {
	if !slices.Contains(e.origins(), o) {
		e.Origins = append(slices.Clone(e.origins()), o)
		e.Origins = e.Origins[max(0, len(e.Origins)-maxOrigins):]
	}
	return e
}

// mayUse reports whether weights that are here may be handed out: see entitles. A
// place that they came from is asked first where another credential is to read
// them, and its refusal is an error.
func (s *Store) mayUse(ctx context.Context, w want) (bool, error) {
	e, ok := s.shelf.entry(w.Digest)
	o := w.origin()
	switch {
	case !ok:
		return false, nil
	case e.entitles(o):
		return true, nil
	case !e.from(o.Place):
		return false, nil
	}
	for _, f := range w.Files {
		if err := s.probe(ctx, w, f); err != nil {
			return false, s.explain(w, err)
		}
	}
	if err := s.shelf.update(w.Digest, func(e entry) entry { return e.with(o) }); err != nil {
		return false, download.DiskError(err, "write")
	}
	s.opt.Log.Info("The source let another credential read weights that are here", "digest", w.Digest, "source", w.Source)
	return true, nil
}

// probe asks a source for the first byte of a file, as a download would.
func (s *Store) probe(ctx context.Context, w want, f model.File) error {
	url, err := s.address(w.Record, f)
	if err != nil {
		return err
	}
	header := http.Header{"Range": {"bytes=0-0"}}
	if sign := s.header(ctx, w, url); sign != nil {
		if header, err = sign(header); err != nil {
			return fmt.Errorf("ask for %s: %w", f.Path, err)
		}
	}
	resp, err := s.opt.Fetch.Client.Get(ctx, url, header)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", f.Path, err)
	}
	return resp.Body.Close()
}
