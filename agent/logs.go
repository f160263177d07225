package agent

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/api/logs"
)

// lastOfLog returns at most n of the last bytes of this agent's log, or of the engine's whose
// v1alpha1.EngineFile is name; fs.ErrNotExist if there is none.
func (a *Agent) lastOfLog(name string, n int) ([]byte, error) {
	if name == "" {
		if a.LogTail == nil {
			return nil, fs.ErrNotExist
		}
		return a.LogTail.Last(n), nil
	}
	// No other file of the folder, and none elsewhere.
	if b, err := hex.DecodeString(name); err != nil || len(b) != 6 {
		return nil, fs.ErrNotExist
	}
	return lastOfFile(filepath.Join(a.StateDir, "logs"), name+".log", n)
}

func lastOfFile(dir, name string, n int) (log []byte, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // read only
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	// One byte more says whether the first line is whole.
	b := make([]byte, min(info.Size(), int64(n)+1))
	read, err := f.ReadAt(b, info.Size()-int64(len(b)))
	if err != nil && !errors.Is(err, io.EOF) { // it was truncated a moment ago
		return nil, fmt.Errorf("read the log of an engine: %w", err)
	}
	return logs.Last(b[:read], n), nil
}
