package inspect

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/agent/s3"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

// foundAdapter is an adapter that was looked at, and its folder without the numbers.
type foundAdapter struct {
	model.Adapter
	dir   string
	close func() error
}

type foundAdapters []foundAdapter

// close removes the folders.
func (all foundAdapters) close() (err error) {
	for _, a := range all {
		err = errors.Join(err, a.close())
	}
	return err
}

// check requires that all are adapters of a model that the engine can apply, as the engine
// does when it loads them: their configuration, and layer, shape and rank of each factor.
// Their headers are read within the budget.
func (all foundAdapters) check(ctx context.Context, headers *weights.Budget, of *weights.File) error {
	for _, a := range all {
		opened, err := headers.OpenAdapter(ctx, a.dir, of)
		if err != nil {
			return unfit(a.Name, err)
		}
		if err := opened.Close(); err != nil {
			return readFault(err)
		}
		if most := a.Bytes() + beyondFiles; opened.Bytes > most {
			return failure(v1alpha1.ReasonUnsupportedModel, "adapter %s takes %s of memory, but its files, by which memory is reserved, have %s: factors of a few experts take as much as those of all; train all experts of its layers, or merge it into the model",
				a.Name, v1alpha1.FormatBytes(opened.Bytes), v1alpha1.FormatBytes(a.Bytes()))
		}
	}
	return nil
}

// beyondFiles is how much more memory than its files' size an adapter may take: that of 16 is within
// the slack of an engine's limit.
const beyondFiles = 4 << 20

// unfit is the error for an adapter that the engine would refuse.
func unfit(name string, err error) error {
	refusal := download.Error{Reason: v1alpha1.ReasonInvalidModel, Err: err,
		Message: "adapter " + name + " is damaged, or of another model; correct spec.adapters, or train it on this model"}
	switch {
	case errors.Is(err, weights.ErrUnsupported):
		refusal.Reason, refusal.Message = v1alpha1.ReasonUnsupportedModel,
			"the engine cannot apply adapter "+name+" to this model; train it without what is named here, or remove it from spec.adapters"
	case errors.Is(err, weights.ErrTruncated):
		refusal.Message = "the file of adapter " + name + " is truncated; copy or publish the complete file again"
	case errors.Is(err, weights.ErrInvalid), errors.Is(err, weights.ErrMissing), errors.Is(err, weights.ErrNoModel):
	default:
		return readFault(err)
	}
	return &refusal
}

// adapters looks at the adapters that an order names. The caller closes them, also after an
// error.
func (r *Resolver) adapters(ctx context.Context, order v1alpha1.Inspection) (all foundAdapters, err error) {
	remote, cancel := within(ctx) // all of them together
	defer cancel()
	var copies copied
	for _, spec := range order.Adapters {
		one := v1alpha1.Inspection{Source: spec.Source, Revision: spec.Revision}
		a := foundAdapter{Adapter: model.Adapter{Name: spec.Name, Source: spec.Source}}
		if a.Shared(order.Source) {
			one.TokenRef = order.TokenRef
		}
		if strings.HasPrefix(spec.Source, "file://") {
			err = r.localAdapter(ctx, &a)
		} else {
			err = r.remoteAdapter(remote, one, &a, &copies)
		}
		if err != nil {
			return all, ofAdapter(spec.Name, err)
		}
		a.Digest = model.DigestOf(a.Files)
		all = append(all, a)
	}
	return all, nil
}

// ofAdapter names the adapter in an error.
func ofAdapter(name string, err error) error {
	var typed *download.Error
	if !errors.As(err, &typed) {
		return err
	}
	named := *typed
	named.Message = "adapter " + name + ": " + named.Message
	return &named
}

// localAdapter looks at an adapter that lies in the model root.
func (r *Resolver) localAdapter(ctx context.Context, a *foundAdapter) error {
	l, err := r.Root.OpenAdapter(a.Source)
	if err != nil {
		return err
	}
	ctx, cancel := r.withinLocal(ctx, bytesOf(l))
	defer cancel()
	sums, err := r.Root.SumFolder(ctx, l, nil)
	if err != nil {
		return errors.Join(readFault(err), l.Close())
	}
	a.Files, a.dir, a.close = l.Record(a.Source, sums).Files, l.Path(), l.Close
	return nil
}

// remoteAdapter copies the adapter's folder without its numbers, within the bounds of all copies
// for the order.
func (r *Resolver) remoteAdapter(ctx context.Context, order v1alpha1.Inspection, a *foundAdapter, copies *copied) (err error) {
	token, err := r.token(order.TokenRef)
	if err != nil {
		return err
	}
	c, commit, look, err := r.listAdapter(ctx, order, token)
	if err != nil {
		return err
	}
	dir, err := r.copyDir()
	if err != nil {
		return err
	}
	look.copied = copies
	remove := func() error { return os.RemoveAll(dir) }
	known := map[string]model.File{}
	for _, e := range c.Files {
		if err := look.copyTo(dir, c.Folder, e, known); err != nil {
			return errors.Join(err, remove())
		}
		if f, ok := known[e.Path]; ok {
			a.Files = append(a.Files, f)
		}
	}
	a.Commit, a.dir, a.close = commit, dir, remove
	return nil
}

// listAdapter lists the files of an adapter at a hub, in a bucket or in a registry.
func (r *Resolver) listAdapter(ctx context.Context, order v1alpha1.Inspection, token download.Bearer) (c hub.Choice, commit string, look *hubLook, err error) {
	switch {
	case strings.HasPrefix(order.Source, hub.Scheme):
		src, err := hub.Parse(order.Source, order.Revision)
		if err == nil {
			err = hub.CheckToken(token)
		}
		if err != nil {
			return c, "", nil, err
		}
		l, err := r.Hub.List(ctx, src, token)
		if err != nil {
			return c, "", nil, err
		}
		look = &hubLook{resolver: r, who: "the hub", get: func(e hub.Entry, header http.Header) (*http.Response, error) {
			return r.Hub.File(ctx, src, l.Commit, e.Path, token, header)
		}}
		c, err = hub.ChooseAdapter(l.Files)
		return c, l.Commit, look, err
	case strings.HasPrefix(order.Source, s3.Scheme):
		c, look, err = r.listBucketAdapter(ctx, order, token)
		return c, "", look, err
	case strings.HasPrefix(order.Source, oci.Scheme):
		src, err := oci.Parse(order.Source)
		if err != nil {
			return c, "", nil, err
		}
		login, err := oci.ReadLogin(token)
		if err != nil {
			return c, "", nil, err
		}
		registries := &oci.Client{Client: r.Client}
		all, err := registries.List(ctx, src, login)
		if err != nil {
			return c, "", nil, err
		}
		look = &hubLook{resolver: r, who: "the registry", get: func(e hub.Entry, header http.Header) (*http.Response, error) {
			return registries.File(ctx, src, e.SHA256, login, header)
		}}
		c, err = hub.ChooseAdapter(all)
		return c, "", look, err
	}
	return c, "", nil, failure(v1alpha1.ReasonSourceForbidden, "unknown scheme of an adapter's source; use file://, hf://, s3:// or oci://")
}

func (r *Resolver) listBucketAdapter(ctx context.Context, order v1alpha1.Inspection, token download.Bearer) (c hub.Choice, look *hubLook, err error) {
	src, err := s3.Parse(order.Source)
	if err != nil {
		return c, nil, err
	}
	keys, err := s3.ReadKeys(token)
	if err != nil {
		return c, nil, err
	}
	buckets := &s3.Client{Client: r.Client}
	all, err := buckets.List(ctx, src, keys)
	if err != nil {
		return c, nil, err
	}
	if c, err = hub.ChooseAdapter(all); err != nil {
		return c, nil, err
	}
	look = &hubLook{resolver: r, who: "the bucket", get: func(e hub.Entry, header http.Header) (*http.Response, error) {
		return buckets.File(ctx, src, e.Path, keys, header)
	}}
	return c, look, buckets.Digests(ctx, src, c.Files, all, keys)
}
