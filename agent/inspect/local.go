package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// slowestDisk, in bytes a second, is the least with which files of this Mac have to be read: all
// of them are hashed, and inspections for other namespaces wait.
const slowestDisk = 32 << 20

// withinLocal bounds one look at files of this Mac of a size.
func (r *Resolver) withinLocal(ctx context.Context, bytes int64) (context.Context, context.CancelFunc) {
	limit := cmp.Or(r.localTime, remoteTime) + time.Duration(bytes/slowestDisk)*time.Second
	return context.WithTimeoutCause(ctx, limit, &download.Error{
		Reason: v1alpha1.ReasonSourceUnreachable, Transient: true,
		Message: fmt.Sprintf("reading the files took longer than %v, less than %d MiB a second; move them to a faster disk of this Mac; retrying", limit, slowestDisk>>20),
	})
}

func bytesOf(l *store.LocalFolder) (n int64) {
	for _, f := range l.Files {
		n += f.Bytes
	}
	return n
}

// ending is a file whose reads end with a context.
type ending struct {
	ctx context.Context
	of  io.ReaderAt
}

func (e ending) ReadAt(p []byte, at int64) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.of.ReadAt(p, at)
}
