//go:build !race

package cold_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// long makes four folders in one another with the longest names, and a file in the last.
func long(at string) error {
	name := strings.Repeat("x", 255)
	at = filepath.Join(at, name, name, name, name)
	return errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "own"), nil, 0o600))
}

// leftovers are what an engine may leave in the folder of its namespace.
var leftovers = map[string]func(e *takenOver) error{
	"long paths in its epoch": func(e *takenOver) error {
		return long(blocks.EpochFolder(filepath.Dir(e.namespace), blocks.NamespaceOf(e.origin), e.lease.Current().Epoch))
	},
	"long paths next to its epoch":  func(e *takenOver) error { return long(filepath.Join(e.namespace, blocks.Temporary)) },
	"long paths among its blocks":   func(e *takenOver) error { return long(filepath.Join(e.namespace, blocks.Shards()[10])) },
	"long paths next to its blocks": func(e *takenOver) error { return long(e.namespace) },
	"a file next to its epoch": func(e *takenOver) error {
		at := filepath.Join(e.namespace, blocks.Temporary, "other", "own")
		e.write(at)
		return os.Truncate(at, 1<<40)
	},
	"a large origin": func(e *takenOver) error {
		return os.Truncate(filepath.Join(e.namespace, blocks.OriginFile), 1<<40)
	},
}

// TestNoLaterEngineIsEndedForWhatOneLeft, also if the agent starts again, or another engine uses the
// folder all the time.
func TestNoLaterEngineIsEndedForWhatOneLeft(t *testing.T) {
	for name, leave := range leftovers {
		t.Run(name, func(t *testing.T) { newTakenOver(t).leaves(leave) })
		t.Run(name+", with another engine", func(t *testing.T) {
			e := newTakenOver(t)
			other := e.lease
			e.leaves(func(e *takenOver) (err error) {
				if other, err = e.owner.Lease(e.origin, nil); err != nil {
					return err
				}
				return leave(e)
			})
			other.End()
		})
		t.Run(name+", and the agent starts again", func(t *testing.T) {
			e := newTakenOver(t)
			if err := leave(e); err != nil {
				t.Fatal(err)
			}
			e.leaves(func(*takenOver) error { return nil })
		})
		t.Run(name+", and all is removed", func(t *testing.T) {
			e := newTakenOver(t)
			if err := leave(e); err != nil {
				t.Fatal(err)
			}
			e.lease.End()
			if _, err := e.owner.Keep(nil); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(filepath.Dir(e.namespace)); err == nil {
				t.Error("the folder of a model that nothing uses is still there")
			}
		})
	}
}

// crowded is a disk on which a folder has as many names as are read, all of one block.
type crowded struct {
	roomy
	shard string
}

func (c *crowded) ReadDir(path string) ([]disk.Info, error) {
	infos, err := c.roomy.ReadDir(path)
	for path == c.shard && len(infos) > 0 && len(infos) < disk.MaxNames {
		infos = append(infos, infos[0])
	}
	return infos, err
}

// TestAShardWithMoreBlocksThanAreReadIsRemoved: those that are not read would be in no books.
func TestAShardWithMoreBlocksThanAreReadIsRemoved(t *testing.T) {
	e := newTakenOver(t)
	e.lease.End()
	e.lease = e.leased(e.origin, 1)
	at := e.forges(e.origin, 0, 1, page)[0]
	e.options.FS = &crowded{roomy: roomy{Contained: disk.Contained{Dir: e.options.Dir}, free: 1 << 42}, shard: filepath.Dir(at)}
	e.open()
	if _, err := os.Stat(at); err == nil {
		t.Error("the blocks are still there")
	}
	if info, err := os.Stat(filepath.Dir(at)); err != nil || !info.IsDir() {
		t.Errorf("no engine can write there: %v", err)
	}
}
