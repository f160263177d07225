// Package oci reads models from registries as the OCI distribution
// specification describes them: artifacts whose layers are a model's files, as
// ORAS and the CNCF ModelPack specification push them.
//
// It owns the form of oci:// sources, which layer is which file, the way to a
// registry's token, and what its answers mean to a user. A user's name and
// password go to the registry and to the token server that it names, and nowhere
// else. It refuses layers that pack several files (an image of KServe's, say):
// an engine maps files as they lie, and a record names each by its own digest.
// It fetches manifests alone: headers are read by package inspect, files by
// package store.
//
// Start reading at Client.List.
package oci

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds of a manifest, as registries have them.
const (
	maxManifest = 4 << 20
	maxLayers   = 4096
)

// Media types of manifests that are read.
const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	dockerType   = "application/vnd.docker.distribution.manifest.v2+json"
)

// ggufLayer is a layer of Docker's, which needs no name: it is the model.
const ggufLayer = "application/vnd.docker.ai.gguf.v3"

// Client asks registries.
type Client struct {
	Client *download.Client
	// LoginTime is how long a registry and its token server may take together for a login, for
	// which a download waits; 0 means a minute.
	LoginTime time.Duration

	// mu guards what follows.
	mu     sync.Mutex
	tokens map[question]token
}

type descriptor struct {
	MediaType   string      `json:"mediaType"`
	Digest      string      `json:"digest"`
	Size        int64       `json:"size"`
	Annotations annotations `json:"annotations"`
}

// annotations name a layer's file, and mark it as a packed folder.
type annotations struct {
	Title  string `json:"org.opencontainers.image.title"`
	Path   string `json:"org.cncf.model.filepath"`
	Unpack string `json:"io.deis.oras.content.unpack"`
}

type manifest struct {
	MediaType string      `json:"mediaType"`
	Layers    descriptors `json:"layers"`
	Manifests descriptors `json:"manifests"`
}

// descriptors of one manifest. Those that are read are at most one more than maxLayers,
// so that a list of empty ones costs no more than its text.
type descriptors []descriptor

// UnmarshalJSON reads a list, or null.
func (d *descriptors) UnmarshalJSON(raw []byte) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	switch t, err := dec.Token(); {
	case err != nil || t == nil:
		return err
	case t != json.Delim('['):
		return fmt.Errorf("%v is no list", t)
	}
	for dec.More() && len(*d) <= maxLayers {
		var next descriptor
		if err := dec.Decode(&next); err != nil {
			return err
		}
		*d = append(*d, next)
	}
	return nil
}

// List returns the files of the artifact. Every error except the context's own is
// a *download.Error.
func (c *Client) List(ctx context.Context, s Source, login Login) ([]hub.Entry, error) {
	m, err := c.manifest(ctx, s, s.Reference, login)
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) > 0 {
		if len(m.Manifests) > 1 {
			return nil, &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: fmt.Sprintf(
				"%s is an index of several manifests; reference one of them by its digest", s)}
		}
		digest := m.Manifests[0].Digest
		if !digestName.MatchString(digest) { // another one would prove nothing
			return nil, strange(s, "is an index of a manifest without a SHA-256")
		}
		if m, err = c.manifest(ctx, s, digest, login); err != nil {
			return nil, err
		}
	}
	if len(m.Layers) > maxLayers {
		return nil, strange(s, fmt.Sprintf("has more than %d layers", maxLayers))
	}
	if len(m.Layers) == 0 {
		return nil, &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: fmt.Sprintf("%s has no layers and no model; push a model's files, as `oras push` does", s)}
	}
	return files(s, m.Layers)
}

// files are what the layers hold: each one file, raw.
func files(s Source, layers []descriptor) (out []hub.Entry, err error) {
	for _, l := range layers {
		name := cmp.Or(l.Annotations.Path, l.Annotations.Title)
		if name == "" && l.MediaType == ggufLayer {
			name = "model.gguf"
		}
		switch {
		case packed(l):
			return nil, &download.Error{Reason: v1alpha1.ReasonUnsupportedModel, Message: fmt.Sprintf(
				"a layer of %s is an archive (%.100s), but engines need plain files; push each file as its own layer: `oras push`, or a ModelPack with raw layers", s, l.MediaType)}
		case name == "":
			continue // a licence or parameters without a file
		case !digestName.MatchString(l.Digest) || l.Size < 0:
			return nil, strange(s, "has a layer without a SHA-256 and a size")
		case !hub.CleanPath(name):
			return nil, &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: fmt.Sprintf("a layer of %s is named %.80q, which cannot be stored; push it under another name", s, name)}
		}
		out = append(out, hub.Entry{Path: name, Bytes: l.Size, SHA256: strings.TrimPrefix(l.Digest, "sha256:")})
	}
	return out, nil
}

// packed reports whether a layer is an archive, or compressed.
func packed(l descriptor) bool {
	t := l.MediaType
	return l.Annotations.Unpack == "true" || strings.HasSuffix(t, "tar") || strings.Contains(t, ".tar") || strings.HasSuffix(t, "+gzip") || strings.HasSuffix(t, "+zstd")
}

// manifest reads one, and proves it where its digest is known.
func (c *Client) manifest(ctx context.Context, s Source, reference string, login Login) (manifest, error) {
	header, err := c.Header(ctx, s, login, http.Header{"Accept": {manifestType, indexType, dockerType}})
	if err != nil {
		return manifest{}, err
	}
	resp, err := c.Get(ctx, s, login, s.manifestURL(reference), header)
	if err != nil {
		return manifest{}, Explain(err, s, login)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return manifest{}, err
	}
	if len(raw) > maxManifest {
		return manifest{}, strange(s, fmt.Sprintf("has a manifest of more than %d MiB", maxManifest>>20))
	}
	sum := sha256.Sum256(raw)
	if want, ok := strings.CutPrefix(reference, "sha256:"); ok && hex.EncodeToString(sum[:]) != want {
		return manifest{}, &download.Error{Reason: v1alpha1.ReasonDigestMismatch, Message: fmt.Sprintf("the manifest of %s has SHA-256 %x, but its reference is %s; contact the registry's administrators", s, sum, want)}
	}
	var m manifest
	if json.Unmarshal(raw, &m) != nil {
		return manifest{}, strange(s, "has a manifest that is not JSON")
	}
	return m, nil
}

// File asks for a file by its SHA-256.
func (c *Client) File(ctx context.Context, s Source, sha256 string, login Login, header http.Header) (*http.Response, error) {
	header, err := c.Header(ctx, s, login, header)
	if err != nil {
		return nil, err
	}
	resp, err := c.Get(ctx, s, login, s.BlobURL(sha256), header)
	if err != nil {
		return nil, Explain(err, s, login)
	}
	return resp, nil
}

func strange(s Source, how string) *download.Error {
	return &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: fmt.Sprintf("%s %s; push it again", s, how)}
}

// Explain explains a registry's response to the user, who sent a login or none.
func Explain(err error, s Source, login Login) error {
	var e *download.Error
	if !errors.As(err, &e) || e.Status == 0 {
		return err
	}
	no := func(reason, format string, args ...any) error {
		return &download.Error{Reason: reason, Message: fmt.Sprintf(format, args...), Code: e.Code, Status: e.Status}
	}
	switch {
	case e.Elsewhere && download.Denied(err): // an address that was good for a while
		return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "the registry's storage rejected the download URL that the registry issued; requesting a new one", Status: e.Status}
	case e.Status == http.StatusNotFound:
		return no(v1alpha1.ReasonSourceNotFound, "%s does not exist; check registry, repository and tag, and what the login of model.secretRef may pull", s)
	case download.Denied(err) && login.none():
		return no(v1alpha1.ReasonTokenRefused, "%s is not public; reference a Secret of type kubernetes.io/dockerconfigjson in model.secretRef", s)
	case download.Denied(err):
		return no(v1alpha1.ReasonTokenRefused, "the login of model.secretRef may not pull %s; grant it access, or put another login into the Secret", s)
	}
	return err
}
