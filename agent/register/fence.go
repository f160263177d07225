package register

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// ErrFenced is returned by the second of two agents that run with one identity at
// the same time.
var ErrFenced = errors.New("another machine runs an agent with the identity of this Mac and began earlier, so this agent stops: " +
	"its state folder was copied, for example with the disk; join this machine under a name of its own")

// fenceFile in the state folder records that this agent was fenced.
const fenceFile = "fenced"

// lease is the Lease of a Mac, as one start of an agent renews it.
//
// A start takes over the Lease from any other at once, because after a restart the
// one before is gone. If the other is alive it takes the Lease back, as the one
// that began earlier, and the later one, which finds that, is fenced.
type lease struct {
	client client.Client
	key    types.NamespacedName
	holder string
	// dir keeps fenceFile.
	dir string
	log logr.Logger
	// shared is called when another agent wrote the Lease: it may have written the
	// status as well.
	shared func()

	started time.Time
	// version of the Lease that this start wrote last; empty if it wrote none.
	version string
	// gone is an earlier holder that did not renew since this start began: after the restore
	// of a backup the Lease names one that has ended.
	gone string
}

// renew writes the Lease. ErrFenced is final.
func (l *lease) renew(ctx context.Context, now time.Time) error {
	if l.started.IsZero() {
		l.started = now
	}
	err := l.write(ctx, now)
	if !apierrors.IsConflict(err) {
		return err
	}
	var have coordinationv1.Lease
	if err := l.client.Get(ctx, l.key, &have); err != nil {
		return fmt.Errorf("read lease %s: %w", l.key, err)
	}
	if l.isSecond(have.Spec) {
		if err := os.WriteFile(filepath.Join(l.dir, fenceFile), []byte(*have.Spec.HolderIdentity+"\n"), 0o600); err != nil {
			l.log.Error(err, "Cannot record that this agent is fenced; it will be again after a restart")
		}
		l.report(ctx, now)
		return ErrFenced
	}
	l.version = have.ResourceVersion
	if err := l.write(ctx, now); err != nil {
		return err
	}
	if l.shared != nil {
		l.shared()
	}
	return nil
}

// isSecond reports whether an agent that began before this one is alive: it took
// back the Lease that this one had written. One whose renewal seems to be older than this
// start is alive if it takes the Lease back again; its clock may be slow.
func (l *lease) isSecond(have coordinationv1.LeaseSpec) bool {
	if have.HolderIdentity == nil || *have.HolderIdentity == l.holder || have.AcquireTime == nil || !have.AcquireTime.Time.Before(l.started) {
		return false
	}
	if have.RenewTime != nil && !have.RenewTime.Time.Before(l.started) {
		return true
	}
	again := l.gone == *have.HolderIdentity
	l.gone = *have.HolderIdentity
	return again
}

// object is the Lease without content. Writes are merge patches, not server-side
// apply: that would create a Lease that is gone, and two agents of one name would
// withdraw one another's fields.
func (l *lease) object() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.key.Namespace, Name: l.key.Name}}
}

func (l *lease) write(ctx context.Context, now time.Time) error {
	written := l.object()
	written.ResourceVersion = l.version
	patch := client.MergeFrom(written.DeepCopy())
	if l.version != "" {
		patch = client.MergeFromWithOptions(written.DeepCopy(), client.MergeFromWithOptimisticLock{})
	}
	written.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &l.holder, AcquireTime: ptr.To(metav1.NewMicroTime(l.started)), RenewTime: ptr.To(metav1.NewMicroTime(now)),
		LeaseDurationSeconds: ptr.To[int32](v1alpha1.MacSilentSeconds),
	}
	if err := l.client.Patch(ctx, written, patch, client.FieldOwner(v1alpha1.ManagerAgent)); err != nil {
		return fmt.Errorf("renew lease %s: %w", l.key, err)
	}
	l.version = written.ResourceVersion
	return nil
}

// report has the operator show that this agent is fenced.
func (l *lease) report(ctx context.Context, now time.Time) {
	fenced := l.object()
	fenced.Annotations = map[string]string{v1alpha1.AnnotationFenced: l.holder + " " + now.UTC().Format(time.RFC3339)}
	if err := l.client.Patch(ctx, fenced, client.MergeFrom(l.object()), client.FieldOwner(v1alpha1.ManagerAgent)); err != nil {
		l.log.Error(err, "Cannot report that this agent is fenced")
	}
}

// await returns once this agent may begin: at once, unless an earlier start in this
// state folder was fenced. Then the other agent must have been silent for as long
// as the operator waits before it calls a Mac silent.
func (l *lease) await(ctx context.Context) error {
	file := filepath.Join(l.dir, fenceFile)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l.log.Error(ErrFenced, "This agent waits until the other one is silent")
	var last time.Time
	var since time.Time // when last was seen first
	for {
		var have coordinationv1.Lease
		if err := l.client.Get(ctx, l.key, &have); err == nil {
			if renewed := ptr.Deref(have.Spec.RenewTime, metav1.MicroTime{}).Time; since.IsZero() || !renewed.Equal(last) {
				last, since = renewed, time.Now()
			}
			if time.Since(since) > v1alpha1.MacSilentSeconds*time.Second {
				return os.Remove(file)
			}
			l.report(ctx, time.Now())
		}
		if !Sleep(ctx, renewEvery) {
			return ctx.Err()
		}
	}
}
