package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/oci"
	"metalfleet.dev/metalfleet/agent/s3"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

// errUnwanted cancels a download that no caller waits for.
var errUnwanted = errors.New("no longer needed")

// diskMargin stays free on the disk of the store.
const diskMargin = 64 << 20

// downloadKey identifies a shared download: tenants with different access do not
// share one.
type downloadKey struct {
	digest string
	origin origin
}

// sharedDownload brings the files of one model to this Mac, for all callers with
// the same access.
type sharedDownload struct {
	downloadKey
	cancel context.CancelCauseFunc
	done   chan struct{}
	// path and err are set before done closes.
	path string
	err  error

	// waiters is guarded by the store's lock; at zero the download is canceled.
	waiters int
	// awaits is the part of its disk reservation that is still to be written.
	awaits atomic.Int64

	// mu guards what follows.
	mu      sync.Mutex
	latest  v1alpha1.Progress
	changed chan struct{}
	// namespaces have wanted it, each once. The list is never changed, but replaced.
	namespaces []string
}

// wantedBy returns the namespaces that have wanted the download.
func (f *sharedDownload) wantedBy() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.namespaces
}

// want adds namespaces.
func (f *sharedDownload) want(namespaces []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Concat(f.namespaces, namespaces)
	slices.Sort(all)
	f.namespaces = slices.Compact(all)
}

// look returns the progress and a channel that closes when it changes.
func (f *sharedDownload) look() (v1alpha1.Progress, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latest, f.changed
}

func (f *sharedDownload) report(p v1alpha1.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.latest = p
	close(f.changed)
	f.changed = make(chan struct{})
}

// join joins the download of the record's files, or starts it. It waits for one
// that is being canceled, so that two never write the same partial file.
func (s *Store) join(ctx context.Context, w want) (*sharedDownload, error) {
	namespaces := s.opt.namespaces(w)
	for {
		s.mu.Lock()
		f := s.downloads[downloadKey{w.Digest, w.origin()}]
		if f == nil {
			f = s.start(w, namespaces)
			s.mu.Unlock()
			return f, nil
		}
		if f.waiters > 0 {
			f.waiters++
			s.mu.Unlock()
			f.want(namespaces)
			s.slots.look() // one of them may have a slot for it
			return f, nil
		}
		s.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("weights of %s: %w", w.Source, context.Cause(ctx))
		}
	}
}

// start starts a download; the caller holds mu.
func (s *Store) start(w want, namespaces []string) *sharedDownload {
	ctx, cancel := context.WithCancelCause(s.lifetime)
	f := &sharedDownload{downloadKey: downloadKey{w.Digest, w.origin()}, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}), waiters: 1, namespaces: namespaces}
	s.downloads[f.downloadKey] = f
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		path, err := s.bring(ctx, f, w)
		if errors.Is(context.Cause(ctx), errUnwanted) && s.lifetime.Err() == nil {
			err = errors.Join(err, s.objects.dropPartial(f.partial()))
		}
		cancel(nil)
		s.mu.Lock()
		delete(s.downloads, f.downloadKey)
		f.path, f.err = path, err
		close(f.done)
		s.mu.Unlock()
	}()
	return f
}

// leave drops a waiter; the last one cancels the download and waits for its end.
func (s *Store) leave(f *sharedDownload) {
	s.mu.Lock()
	f.waiters--
	last := f.waiters == 0
	s.mu.Unlock()
	if last {
		f.cancel(errUnwanted)
		<-f.done
	}
}

// partial is the folder that the download writes to.
func (k downloadKey) partial() string { return partial(k.digest, k.origin) }

// downloading reports whether weights are being downloaded; the caller holds mu.
func (s *Store) downloading(digest string) bool {
	for k := range s.downloads {
		if k.digest == digest {
			return true
		}
	}
	return false
}

// bring returns the path of verified files.
func (s *Store) bring(ctx context.Context, f *sharedDownload, rec want) (string, error) {
	verifying := func(done int64) {
		f.report(v1alpha1.Progress{Stage: v1alpha1.StageVerifying, BytesDone: done, BytesTotal: rec.Bytes()})
	}
	if strings.HasPrefix(rec.Source, "file://") {
		return s.inPlace(ctx, rec.Record, verifying)
	}
	path, err := s.objects.find(ctx, rec.Digest, verifying)
	if err != nil {
		return "", err
	}
	if path != "" {
		may, err := s.mayUse(ctx, rec)
		if err != nil {
			return "", err
		}
		if may {
			return path, nil
		}
	}
	switch {
	case strings.HasPrefix(rec.Source, "https://"), strings.HasPrefix(rec.Source, hub.Scheme), strings.HasPrefix(rec.Source, s3.Scheme), strings.HasPrefix(rec.Source, oci.Scheme):
		return s.fetch(ctx, f, rec)
	}
	return "", &download.Error{Reason: v1alpha1.ReasonSourceForbidden, Message: fmt.Sprintf("unknown scheme of source %q; use file://, https://, hf://, s3:// or oci://", rec.Source)}
}

// inPlace verifies a file or folder of the model root, which is used where it is.
func (s *Store) inPlace(ctx context.Context, rec model.Record, verifying func(int64)) (string, error) {
	if rec.Format == model.FormatSafetensors {
		return s.folderInPlace(ctx, rec, verifying)
	}
	return s.fileInPlace(ctx, rec, verifying)
}

// folderInPlace requires that the folder holds the record's files and no other
// that an engine would read.
func (s *Store) folderInPlace(ctx context.Context, rec model.Record, verifying func(int64)) (string, error) {
	open := s.opt.Root.OpenFolder
	if slices.ContainsFunc(rec.Files, func(f model.File) bool { return f.Path == weights.AdapterConfigFile }) {
		open = s.opt.Root.OpenAdapter
	}
	l, err := open(rec.Source)
	if err != nil {
		return "", err
	}
	if l == nil {
		return "", changed(rec, "the folder contains no safetensors model")
	}
	defer l.Close()
	sums, err := s.opt.Root.SumFolder(ctx, l, verifying)
	if err != nil {
		return "", err
	}
	got := l.Record(rec.Source, sums)
	if got.Digest != rec.Digest {
		return "", changed(rec, differs(got.Files, rec.Files))
	}
	return l.Path(), nil
}

// differs returns the first file that changed.
func differs(got, want []model.File) string {
	have := map[string]model.File{}
	for _, f := range got {
		have[f.Path] = f
	}
	for _, w := range want {
		g, ok := have[w.Path]
		switch {
		case !ok:
			return w.Path + " is missing"
		case g != w:
			return w.Path + " has changed"
		}
		delete(have, w.Path)
	}
	return "there is a new file " + slices.Min(slices.Collect(maps.Keys(have)))
}

// fileInPlace is inPlace for a model of one file.
func (s *Store) fileInPlace(ctx context.Context, rec model.Record, verifying func(int64)) (string, error) {
	l, err := s.opt.Root.Open(rec.Source)
	if err != nil {
		return "", err
	}
	defer l.Close()
	want := rec.Files[0]
	if l.Size != want.Bytes {
		return "", changed(rec, fmt.Sprintf("it has %d bytes instead of %d", l.Size, want.Bytes))
	}
	got, err := s.opt.Root.Sum(ctx, l, verifying)
	if err != nil {
		return "", err
	}
	if got != want.SHA256 {
		return "", changed(rec, "its SHA-256 is "+got+" instead of "+want.SHA256)
	}
	return l.Path(), nil
}

func changed(rec model.Record, how string) error {
	otherwise := "set model.sha256 to the new file's digest"
	if rec.Format == model.FormatSafetensors {
		otherwise = "use another folder and source for the new model"
	}
	return &download.Error{
		Reason:  v1alpha1.ReasonDigestMismatch,
		Message: fmt.Sprintf("%s changed since it was inspected: %s; restore the inspected files, or %s", brief(rec.Source), how, otherwise),
	}
}

// fetch downloads the record's files, one after another, and adds them to the
// object store. It takes several turns if its source is slow and others wait, or if
// its peers are busy.
func (s *Store) fetch(ctx context.Context, f *sharedDownload, rec want) (string, error) {
	c := s.newCopies(rec, s.objects.hashedOf(f.partial()))
	for {
		f.report(v1alpha1.Progress{Stage: v1alpha1.StageQueued, BytesTotal: rec.Bytes()})
		c.ask(ctx)
		within, turn, err := s.slots.acquire(ctx, f.wantedBy)
		if err != nil {
			return "", err
		}
		c.turn = turn
		path, err := s.fetchInTurn(within, f, rec, c)
		yielded := err != nil && errors.Is(context.Cause(within), errYielded)
		turn.end()
		switch busy := errors.Is(err, errBusy); {
		case ctx.Err() != nil || !yielded && !busy:
			return path, err
		case busy:
			if err := pause(ctx); err != nil {
				return "", err
			}
		}
	}
}

func (s *Store) fetchInTurn(ctx context.Context, f *sharedDownload, rec want, c *copies) (string, error) {
	targets, missing, err := s.stage(ctx, rec, c.turn)
	if err != nil {
		return "", err
	}
	if err := s.makeRoom(f, missing); err != nil {
		return "", errors.Join(err, s.objects.dropPartial(f.partial()))
	}
	defer f.awaits.Store(0)
	c.keep(targets)
	err = s.transfer(ctx, f, rec, targets, c)
	if errors.Is(err, errBusy) {
		return "", err
	}
	if err != nil {
		err = s.sources.explain(rec, err)
		if ctx.Err() == nil && !download.IsTransient(err) && !download.MayPass(err) {
			err = errors.Join(err, s.objects.dropPartial(f.partial()))
		}
		return "", err
	}
	path, err := s.objects.place(rec.Record, f.origin, s.opt.namespace(rec))
	if err != nil {
		return "", download.DiskError(err, "store")
	}
	s.objects.forgetHashed(f.partial())
	return path, nil
}

// namespaces are those that a download is for; none if that is unknown.
func (o *Options) namespaces(rec want) []string {
	if o.Namespaces == nil {
		return nil
	}
	return o.Namespaces(rec.Record, rec.ref)
}

// namespace is the first of them; empty if that is unknown.
func (o *Options) namespace(rec want) string {
	if all := o.namespaces(rec); len(all) > 0 {
		return all[0]
	}
	return ""
}

// stage prepares the download of missing files, and returns how many bytes are
// missing.
func (s *Store) stage(ctx context.Context, rec want, turn *turn) (targets []download.Target, missing int64, err error) {
	for _, f := range rec.Files {
		url, err := s.sources.address(rec.Record, f)
		if err != nil {
			return nil, 0, err
		}
		target, there, err := s.objects.stage(rec.Record, f, url, rec.origin())
		if err != nil {
			return nil, 0, download.DiskError(err, "make room for")
		}
		if shared, err := s.objects.shared(target.Name); err != nil {
			return nil, 0, download.DiskError(err, "read")
		} else if shared {
			continue
		}
		target.Header, target.Get = s.sources.header(ctx, rec, url), s.sources.get(rec)
		count := s.sources.gained(rec.Record)
		target.Gained = func(n int) {
			turn.gained(n)
			count(n)
		}
		targets = append(targets, target)
		missing += f.Bytes - there
	}
	return targets, missing, nil
}

// transfer fetches files one after another and reports the progress of all files,
// with those that are complete already.
func (s *Store) transfer(ctx context.Context, f *sharedDownload, rec want, targets []download.Target, c *copies) error {
	total := rec.Bytes()
	before := total
	for _, t := range targets {
		before -= t.Bytes
	}
	for _, t := range targets {
		if download.Complete(t) { // since an earlier turn
			before += t.Bytes
			continue
		}
		show := func(p download.Progress) {
			within := p.Within(before, total)
			f.awaits.Store(max(0, min(f.awaits.Load(), total-within.Done)))
			f.report(downloading(within))
		}
		t.Dropped = func(n int64) { f.awaits.Add(min(n, t.Bytes)) } // show corrects it
		if err := c.file(ctx, t, show); err != nil {
			return err
		}
		before += t.Bytes
	}
	return nil
}

func downloading(p download.Progress) v1alpha1.Progress {
	out := v1alpha1.Progress{Stage: v1alpha1.StageDownloading, BytesDone: p.Done, BytesTotal: p.Total}
	if p.ETA >= 0 {
		s := int64(p.ETA.Seconds() + 0.5)
		out.ETASeconds = &s
	}
	return out
}
