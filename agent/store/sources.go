package store

import (
	"context"
	"net/http"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/agent/s3"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// sources knows the sources of weights: the address of each file, the
// authorization that a request for it needs, and what a refusal means.
type sources struct {
	// hub resolves hf:// sources; nil if there are none.
	hub *hub.Hub
	// registries caches the tokens of registries.
	registries *oci.Client
	// credential returns what an assignment's tokenRef names; nil if there are
	// none.
	credential func(ref string) (download.Bearer, error)
	// fetched counts bytes by the scheme of their source; may be nil.
	fetched func(scheme string, n int)
}

// address returns the URL of one of a record's files.
func (o *sources) address(rec model.Record, f model.File) (string, error) {
	switch {
	case strings.HasPrefix(rec.Source, s3.Scheme):
		src, err := s3.Parse(rec.Source)
		if err != nil {
			return "", err
		}
		return src.URL(f.Path), nil
	case strings.HasPrefix(rec.Source, oci.Scheme):
		src, err := oci.Parse(rec.Source)
		if err != nil {
			return "", err
		}
		return src.BlobURL(f.SHA256), nil
	case !strings.HasPrefix(rec.Source, hub.Scheme):
		return rec.Source, nil
	}
	src, err := hub.Parse(rec.Source, "")
	if err != nil {
		return "", err
	}
	if !hub.IsCommit(rec.Commit) || o.hub == nil {
		return "", &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: "the model record has no commit; delete and apply the ModelDeployment again"}
	}
	return o.hub.URL(src.Repo, rec.Commit, f.Path), nil
}

// header returns the authorization for requests for a record's files: a hub's
// token, a bucket's signature or a registry's token, if the assignment names a
// credential. Other sources get none.
func (o *sources) header(ctx context.Context, rec want, address string) func(http.Header) (http.Header, error) {
	switch {
	case strings.HasPrefix(rec.Source, hub.Scheme):
		return func(h http.Header) (http.Header, error) {
			b, err := o.token(rec)
			if err == nil {
				err = hub.CheckToken(b)
			}
			return b.Header(h), err
		}
	case strings.HasPrefix(rec.Source, oci.Scheme):
		return func(h http.Header) (http.Header, error) {
			src, err := oci.Parse(rec.Source)
			if err != nil {
				return nil, err
			}
			login, err := o.login(rec)
			if err != nil {
				return nil, err
			}
			return o.registries.Header(ctx, src, login, h)
		}
	case strings.HasPrefix(rec.Source, s3.Scheme):
		return func(h http.Header) (http.Header, error) {
			src, err := s3.Parse(rec.Source)
			if err != nil {
				return nil, err
			}
			keys, err := o.keys(rec)
			if err != nil {
				return nil, err
			}
			return keys.Sign(http.MethodGet, address, src.Region, h)
		}
	}
	return nil
}

// getter is Target.Get.
type getter func(ctx context.Context, url string, header http.Header) (*http.Response, error)

// get returns how a record's files are requested; nil: as any URL is.
func (o *sources) get(rec want) getter {
	if !strings.HasPrefix(rec.Source, oci.Scheme) {
		return nil
	}
	return func(ctx context.Context, url string, header http.Header) (*http.Response, error) {
		src, err := oci.Parse(rec.Source)
		if err != nil {
			return nil, err
		}
		login, err := o.login(rec)
		if err != nil {
			return nil, err
		}
		return o.registries.Get(ctx, src, login, url, header)
	}
}

// token is the credential that an assignment names; empty if it names none.
func (o *sources) token(rec want) (download.Bearer, error) {
	if o.credential == nil || rec.ref == "" {
		return "", nil
	}
	return o.credential(rec.ref)
}

func (o *sources) keys(rec want) (s3.Keys, error) {
	b, err := o.token(rec)
	if err != nil {
		return s3.Keys{}, err
	}
	return s3.ReadKeys(b)
}

func (o *sources) login(rec want) (oci.Login, error) {
	b, err := o.token(rec)
	if err != nil {
		return oci.Login{}, err
	}
	return oci.ReadLogin(b)
}

// gained returns the counter for bytes from a record's source.
func (o *sources) gained(rec model.Record) func(int) {
	if o.fetched == nil {
		return func(int) {}
	}
	scheme, _, _ := strings.Cut(rec.Source, ":")
	return func(n int) { o.fetched(scheme, n) }
}

// explain explains the error response of a hub, a bucket or a registry.
func (o *sources) explain(rec want, err error) error {
	if strings.HasPrefix(rec.Source, s3.Scheme) {
		src, parseErr := s3.Parse(rec.Source)
		keys, keysErr := o.keys(rec)
		if parseErr != nil || keysErr != nil {
			return err
		}
		return s3.Explain(err, src, keys)
	}
	if strings.HasPrefix(rec.Source, oci.Scheme) {
		src, parseErr := oci.Parse(rec.Source)
		login, loginErr := o.login(rec)
		if parseErr != nil || loginErr != nil {
			return err
		}
		return oci.Explain(err, src, login)
	}
	src, parseErr := hub.Parse(rec.Source, "")
	if parseErr != nil {
		return err // of another server
	}
	src.Revision = rec.Commit
	token, tokenErr := o.token(rec)
	return hub.Explain(err, src, tokenErr == nil && token != "")
}
