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

// address returns the URL of one of a record's files.
func (s *Store) address(rec model.Record, f model.File) (string, error) {
	switch {
	case strings.HasPrefix(rec.Source, s3.Scheme):
		src, err := s3.Parse(rec.Source)
		return src.URL(f.Path), err
	case strings.HasPrefix(rec.Source, oci.Scheme):
		src, err := oci.Parse(rec.Source)
		return src.BlobURL(f.SHA256), err
	case !strings.HasPrefix(rec.Source, hub.Scheme):
		return rec.Source, nil
	}
	src, err := hub.Parse(rec.Source, "")
	if err != nil {
		return "", err
	}
	if !hub.IsCommit(rec.Commit) || s.opt.Hub == nil {
		return "", &download.Error{Reason: v1alpha1.ReasonInvalidModel, Message: "the model record has no commit; delete and apply the ModelDeployment again"}
	}
	return s.opt.Hub.URL(src.Repo, rec.Commit, f.Path), nil
}

// header returns the authorization for requests for a record's files: a hub's
// token, a bucket's signature or a registry's token, if the assignment names a
// credential. Other sources get none.
func (s *Store) header(ctx context.Context, rec want, address string) func(http.Header) (http.Header, error) {
	switch {
	case strings.HasPrefix(rec.Source, hub.Scheme):
		return func(h http.Header) (http.Header, error) {
			b, err := s.token(rec)
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
			login, err := s.login(rec)
			if err != nil {
				return nil, err
			}
			return s.registries.Header(ctx, src, login, h)
		}
	case strings.HasPrefix(rec.Source, s3.Scheme):
		return func(h http.Header) (http.Header, error) {
			src, err := s3.Parse(rec.Source)
			if err != nil {
				return nil, err
			}
			keys, err := s.keys(rec)
			if err != nil {
				return nil, err
			}
			return keys.Sign(http.MethodGet, address, src.Region, h)
		}
	}
	return nil
}

// token is the credential that an assignment names; empty if it names none.
func (s *Store) token(rec want) (download.Bearer, error) {
	if s.opt.Token == nil || rec.ref == "" {
		return "", nil
	}
	return s.opt.Token(rec.ref)
}

func (s *Store) keys(rec want) (s3.Keys, error) {
	b, err := s.token(rec)
	if err != nil {
		return s3.Keys{}, err
	}
	return s3.ReadKeys(b)
}

func (s *Store) login(rec want) (oci.Login, error) {
	b, err := s.token(rec)
	if err != nil {
		return oci.Login{}, err
	}
	return oci.ReadLogin(b)
}

// gained returns the counter for bytes from a record's source.
func (s *Store) gained(rec model.Record) func(int) {
	if s.opt.Fetched == nil {
		return func(int) {}
	}
	scheme, _, _ := strings.Cut(rec.Source, ":")
	return func(n int) { s.opt.Fetched(scheme, n) }
}

// mayYet reports whether another token may get the file that was denied.
func (s *Store) mayYet(rec want, err error) bool {
	return s.header(context.Background(), rec, "") != nil && download.Denied(err)
}

// explain explains the error response of a hub, a bucket or a registry.
func (s *Store) explain(rec want, err error) error {
	if strings.HasPrefix(rec.Source, s3.Scheme) {
		src, parseErr := s3.Parse(rec.Source)
		keys, keysErr := s.keys(rec)
		if parseErr != nil || keysErr != nil {
			return err
		}
		return s3.Explain(err, src, keys)
	}
	if strings.HasPrefix(rec.Source, oci.Scheme) {
		src, parseErr := oci.Parse(rec.Source)
		login, loginErr := s.login(rec)
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
	token, tokenErr := s.token(rec)
	return hub.Explain(err, src, tokenErr == nil && token != "")
}
