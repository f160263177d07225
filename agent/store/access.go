package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/api/model"
)

// A digest is no permission: digests are public, and a tenant's own server or
// repository may claim any. Weights on this Mac are shared with tenants whose
// credential downloaded them, and with others after the source that they came
// from grants access. Weights that another source claims to have are downloaded
// from there, which proves that it has them. The kubelet treats images on a node
// in the same way (KubeletEnsureSecretPulledImages). A copy from a peer is no
// download: the source is asked before it (copies.permitted), and the peer, which
// trusts no other Mac, gives it only to the same credential or what is public (Give).

// want is a record with the name of the credential that an assignment has for its
// source; ref is empty if it has none.
type want struct {
	model.Record
	ref string
}

// origin is a source that weights came from, or that granted a credential access
// to them, and that credential.
type origin struct {
	Place string `json:"place"`
	// TokenRef names the credential; it identifies the tenant, and stays the same
	// when the tenant renews the token.
	TokenRef string `json:"tokenRef,omitempty"`
}

// granted is an origin with the namespace of the assignment that it was recorded
// for; empty if that is unknown.
type granted struct {
	origin
	Namespace string `json:"namespace,omitempty"`
	// Borrowed: the credential also reads other weights on this Mac, and some of these were linked
	// from there. The place did not prove to have them.
	Borrowed bool `json:"borrowed,omitempty"`
}

// maxOrigins bounds how many origins a record keeps.
const maxOrigins = 64

func (w want) origin() origin { return origin{placeOf(w.Source), w.ref} }

// public is the origin of what the place gives without a credential.
func (o origin) public() origin { return origin{Place: o.Place} }

// placeOf is the part of a source to which its host grants access as a whole: a
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
// to: one tenant's download is not resumed by another.
func partial(digest string, o origin) string {
	sum := sha256.Sum256([]byte(o.Place + "\x00" + o.TokenRef))
	return folder(digest) + "-" + hex.EncodeToString(sum[:8])
}

// entitles reports whether weights may be used without asking their source: the
// same credential downloaded them, or they came from the same place without a
// credential.
func (e entry) entitles(o origin) bool {
	return slices.ContainsFunc(e.origins(), func(have granted) bool {
		return have.origin == o || o.TokenRef != "" && have.TokenRef == o.TokenRef
	})
}

// from reports whether all of the weights came from a place.
func (e entry) from(place string) bool {
	return slices.ContainsFunc(e.origins(), func(have granted) bool { return have.Place == place && !have.Borrowed })
}

// unknownRef stands for the credential of weights that were stored before
// credentials were recorded.
const unknownRef = "unknown"

func (e entry) origins() []granted {
	if len(e.Origins) == 0 {
		return []granted{{origin: origin{placeOf(e.Record.Source), unknownRef}}}
	}
	return e.Origins
}

// namespace is the namespace that the weights were first stored for; empty if that
// is unknown.
func (e entry) namespace() string { return e.origins()[0].Namespace }

// with returns the entry with one more origin. Of too many, the namespace with the
// most loses its oldest.
func (e entry) with(o granted) entry {
	if slices.ContainsFunc(e.origins(), func(have granted) bool { return have.origin == o.origin }) {
		return e
	}
	e.Origins = append(slices.Clone(e.origins()), o)
	for len(e.Origins) > maxOrigins {
		of := map[string]int{}
		for _, have := range e.Origins {
			of[have.Namespace]++
		}
		most := slices.Max(slices.Collect(maps.Values(of)))
		i := slices.IndexFunc(e.Origins, func(have granted) bool { return of[have.Namespace] == most })
		e.Origins = slices.Delete(e.Origins, i, i+1)
	}
	return e
}

// mayUse reports whether weights on this Mac may be used: see entitles. If
// another credential wants them, their source is asked first, and its refusal is
// an error.
func (s *Store) mayUse(ctx context.Context, w want) (bool, error) {
	e, ok := s.objects.entry(w.Digest)
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
			return false, s.sources.explain(w, err)
		}
	}
	if err := s.objects.update(w.Digest, func(e entry) entry { return e.with(granted{origin: o, Namespace: s.opt.namespace(w)}) }); err != nil {
		return false, download.DiskError(err, "write")
	}
	s.opt.Log.Info("The source let another credential read weights that are here", "digest", w.Digest, "source", w.Source)
	return true, nil
}

// probe requests the first byte of a file from its source, as a download would.
func (s *Store) probe(ctx context.Context, w want, f model.File) error {
	url, err := s.sources.address(w.Record, f)
	if err != nil {
		return err
	}
	return s.readable(ctx, download.Target{Name: f.Path, URL: url, Header: s.sources.header(ctx, w, url), Get: s.sources.get(w)})
}

// readable requests the first byte of a file, with its authorization.
func (s *Store) readable(ctx context.Context, t download.Target) error {
	header := http.Header{"Range": {"bytes=0-0"}}
	if t.Header != nil {
		var err error
		if header, err = t.Header(header); err != nil {
			return fmt.Errorf("ask for %s: %w", t.Name, err)
		}
	}
	get := t.Get
	if get == nil {
		get = s.opt.Fetch.Client.Get
	}
	resp, err := get(ctx, t.URL, header)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", t.Name, err)
	}
	return resp.Body.Close()
}
