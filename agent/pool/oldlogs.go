package pool

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	// maxOldLogs and maxOldLogBytes bound the logs of engines whose replica is not
	// on this Mac any more; the newest are kept for a person to read.
	maxOldLogs     = 64
	maxOldLogBytes = 1 << 30
	// sweepPause is the pause between two looks at them.
	sweepPause = time.Minute
)

// logName matches the log of a replica's engines, and the part that was set aside.
var logName = regexp.MustCompile(`^([0-9a-f]{12})\.log(\.1)?$`)

// oldLog is what is left of the engines of one replica and epoch.
type oldLog struct {
	paths   []string
	bytes   int64
	written time.Time // last
}

// sweepLogs removes logs of replicas that are gone, the oldest first, every
// sweepPause.
func (lc *lifecycle) sweepLogs() {
	here, due := map[string]bool{}, false
	lc.read(func() {
		now := time.Now()
		if due = now.Sub(lc.swept) >= sweepPause; !due {
			return
		}
		lc.swept = now
		for k := range lc.entries {
			here[v1alpha1.EngineFile(k.UID, k.Epoch)] = true
		}
	})
	if !due {
		return
	}
	if err := removeOldLogs(lc.files.logs, here, maxOldLogs, maxOldLogBytes); err != nil {
		lc.Log.Error(err, "Failed to remove old engine logs")
	}
}

// removeOldLogs keeps the newest logs that are not of here, at most count of at
// most bytes together, and removes the others.
func removeOldLogs(dir string, here map[string]bool, count int, bytes int64) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	by := map[string]*oldLog{}
	for _, f := range files {
		name := logName.FindStringSubmatch(f.Name())
		if name == nil || here[name[1]] || !f.Type().IsRegular() {
			continue
		}
		info, err := f.Info()
		if err != nil {
			continue // it was removed meanwhile
		}
		log := by[name[1]]
		if log == nil {
			log = &oldLog{}
			by[name[1]] = log
		}
		log.paths = append(log.paths, filepath.Join(dir, f.Name()))
		log.bytes += logBytes(info)
		if info.ModTime().After(log.written) {
			log.written = info.ModTime()
		}
	}
	old := make([]*oldLog, 0, len(by))
	for _, log := range by {
		old = append(old, log)
	}
	slices.SortFunc(old, func(a, b *oldLog) int {
		return cmp.Or(b.written.Compare(a.written), cmp.Compare(a.paths[0], b.paths[0]))
	})
	var errs []error
	for i, log := range old {
		if bytes -= log.bytes; i < count && bytes >= 0 {
			continue
		}
		for _, path := range log.paths {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
